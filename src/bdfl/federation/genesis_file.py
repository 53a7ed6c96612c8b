"""Genesis file: the genesis, the parts it names by digest, and every member's signature.

A reader trusts nothing in it. Every card is signed by its member, and the genesis lists the members of the cards. Its
rules follow from the scenario, and a signature counts only for this genesis.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from bdfl.encoding import SIGNATURE_SIZE, Digest, Record, Signature, digest, encode
from bdfl.errors import BdflError, one_line
from bdfl.federation.member_card import CertificateBytes, SignedCard, validate_card
from bdfl.identity import Meaning, Place, Signer, is_signed, statement_digest
from bdfl.learning.participation import participation_of
from bdfl.ledger.block import MAX_BLOCK_SIZE, MAX_MEMBERS, AccessPoint, Genesis, Member, chain_id
from bdfl.ledger.chain_params import MAX_MODEL_SIZE, read_layout
from bdfl.ledger.costs import NANO, count_units
from bdfl.ledger.genesis import draft_genesis, make_toolbox, validate_genesis, validate_initial_model
from bdfl.scenario import LiveMode, Scenario, dump_scenario, load_scenario, parse_scenario, scenario_digest
from bdfl.scenario.files import named_traces, validate_allowed
from bdfl.scenario.validation import MAX_TOML_SIZE, parse_toml
from bdfl.storage import read_record, read_regular
from bdfl.transports.live.certificates import common_name_of, validate_access_point

MAX_GENESIS_SIZE = MAX_MODEL_SIZE + MAX_BLOCK_SIZE
_MAX_SIGNATURE_FILE = 4096
_POINT_NAME = re.compile(r"(?!member-)[A-Za-z0-9.-]{1,60}")
_RATE_SLACK = 1  # 1e-9: floating-point means and deviations differ between processors

MAX_SCENARIO_SIZE = 2**20  # characters
_AMONG_MACHINES = ("ledger.quorum=bft", "ledger.work=argon2id")  # machines may be malicious, and mine on any hardware
_MEASURED = "radio.bandwidth_hz=1e9"  # enough for any network card

SignatureOrNone: TypeAlias = Annotated[bytes, Meta(max_length=SIGNATURE_SIZE)]
ScenarioText: TypeAlias = Annotated[str, Meta(max_length=MAX_SCENARIO_SIZE)]
ModelBytes: TypeAlias = Annotated[bytes, Meta(max_length=MAX_MODEL_SIZE)]
Cards: TypeAlias = Annotated[tuple[SignedCard, ...], Meta(max_length=MAX_MEMBERS)]
Certificates: TypeAlias = Annotated[tuple[CertificateBytes, ...], Meta(max_length=MAX_MEMBERS)]


class BadGenesisFile(BdflError):
    """A genesis file with inconsistent parts, or a signature for another genesis."""


class GenesisFile(Record, frozen=True):
    """A genesis, the parts it names by digest, and its signatures."""

    form: Literal["bdfl genesis 3"]
    genesis: Genesis
    scenario: ScenarioText  # TOML
    initial_model: ModelBytes  # safetensors
    cards: Cards  # by member
    access_points: Certificates  # X.509 in DER, in the order of the genesis
    signatures: Annotated[tuple[SignatureOrNone, ...], Meta(max_length=MAX_MEMBERS)]  # by member; empty: not signed yet

    @property
    def chain(self) -> bytes:
        """The chain's id: the digest that every member signs."""
        return chain_id(self.genesis)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(signed.card.name for signed in self.cards)

    @property
    def authorities(self) -> tuple[bytes, ...]:
        """The members' CA certificates in DER."""
        return tuple(signed.card.authority for signed in self.cards)

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        return tuple(member.public_key for member in self.genesis.members)

    @property
    def missing_signatures(self) -> list[int]:
        """Members that have not signed yet."""
        return [number for number, signature in enumerate(self.signatures) if not signature]

    def number_of(self, public_key: bytes) -> int | None:
        """Return the number of the member with that key; None: not a member."""
        return self.public_keys.index(public_key) if public_key in self.public_keys else None


class GenesisSignature(Record, frozen=True):
    """One member's detached signature, small enough for any message."""

    form: Literal["bdfl signature 1"]
    chain: Digest
    public_key: Digest
    signature: Signature


def read_genesis(path: Path, *, allowed: frozenset[str] = frozenset()) -> GenesisFile:
    """Read and validate a genesis file; signatures may be missing, but none is invalid.

    Functions named by its scenario must be `allowed`.
    """
    file = read_record(path, GenesisFile, "genesis", MAX_GENESIS_SIZE)
    try:
        validate_genesis_file(file, allowed=allowed)
    except BdflError as error:
        raise BadGenesisFile(f"{path}: {error}") from None
    return file


def validate_genesis_file(file: GenesisFile, *, allowed: frozenset[str] = frozenset()) -> Scenario:
    """Return the agreed scenario; raises a `BdflError` at the first inconsistency in the file."""
    num_members = len(file.genesis.members)
    if not num_members == len(file.cards) == len(file.signatures):
        found = f"{len(file.cards)} cards and {len(file.signatures)} signatures or places for them"
        raise BadGenesisFile(f"{found}, one of each for the {num_members} members expected")
    for number, signature in enumerate(file.signatures):
        if signature and not is_agreed(file.genesis, file.public_keys[number], signature):
            raise BadGenesisFile(f"signature of member {number}: not of this genesis, or not by its key")
    for signed in file.cards:
        validate_card(signed)
    scenario = read_scenario(file.scenario, allowed)
    if scenario.clients.count != num_members:
        raise BadGenesisFile(f"{num_members} members, {scenario.clients.count} expected, as clients.count says")
    _validate_members(file, scenario)
    _validate_access_points(file)
    cache = make_toolbox(scenario)
    validate_initial_model(file.genesis, file.initial_model, cache)
    _validate_rules(file, scenario)
    validate_genesis(file.genesis, cache)
    return scenario


def members_of(cards: Sequence[SignedCard], scenario: Scenario) -> list[Member]:
    """Build the members from their cards, with participation rates that follow from all members' labels."""
    rates = _rates_of(cards, scenario)
    return [
        Member(
            public_key=signed.card.public_key,
            limits=msgspec.structs.replace(signed.card.limits, rate_nano=rate),
            conditions=signed.card.conditions,
        )
        for signed, rate in zip(cards, rates, strict=True)
    ]


def describe_access_points(certificates: Iterable[bytes]) -> tuple[AccessPoint, ...]:
    """Build the genesis entries of access points; raises `BadGenesisFile` for invalid or duplicate names."""
    found: list[AccessPoint] = []
    for certificate in certificates:
        name = _read_name(certificate)
        if not _POINT_NAME.fullmatch(name):
            raise BadGenesisFile(
                f"access point {name!r}: letters, digits, dots and dashes expected, and no member's name"
            )
        if any(name == point.name for point in found):
            raise BadGenesisFile(f"access point {name}: there twice, different names expected")
        found.append(AccessPoint(name, digest(certificate)))
    return tuple(found)


def sign_genesis(file: GenesisFile, signer: Signer) -> GenesisFile:
    """Add a member's signature; raises `BadGenesisFile` if the key is not a member's."""
    number = file.number_of(signer.public_key)
    if number is None:
        raise BadGenesisFile("your key: not among the members of this genesis; is it the key your card was made with?")
    return _with_signature(file, number, signer.sign(Meaning.GENESIS, _place(file.genesis), file.genesis))


def take_signature(file: GenesisFile, signer: Signer) -> GenesisSignature:
    """Make a member's detached signature, for `add_signature`."""
    number = file.number_of(signer.public_key)
    signature = sign_genesis(file, signer).signatures[number or 0]
    return GenesisSignature("bdfl signature 1", file.chain, signer.public_key, signature)


def add_signature(file: GenesisFile, one: GenesisSignature) -> GenesisFile:
    """Add a detached signature after verifying it."""
    if one.chain != file.chain:
        found = f"{one.chain.hex()[:16]}, signatures of {file.chain.hex()[:16]}"
        raise BadGenesisFile(f"signature: of another genesis, {found} expected")
    number = file.number_of(one.public_key)
    if number is None or not is_agreed(file.genesis, one.public_key, one.signature):
        raise BadGenesisFile("signature: not by a member of this genesis")
    return _with_signature(file, number, one.signature)


def merge_signatures(file: GenesisFile, other: GenesisFile) -> GenesisFile:
    """Add all signatures from another copy of the file."""
    for number, signature in enumerate(other.signatures):
        if signature:
            one = GenesisSignature("bdfl signature 1", other.chain, other.public_keys[number], signature)
            file = add_signature(file, one)
    return file


def read_signature(path: Path) -> GenesisSignature:
    """Read a detached signature; `add_signature` verifies it."""
    return read_record(path, GenesisSignature, "signature", _MAX_SIGNATURE_FILE)


def is_agreed(genesis: Genesis, public_key: bytes, signature: bytes) -> bool:
    """Return whether `signature` is that key's for this genesis."""
    return is_signed(public_key, signature, statement_digest(Meaning.GENESIS, _place(genesis), encode(genesis)))


def _place(genesis: Genesis) -> Place:
    return Place(chain_id(genesis), 0, bytes(32))


def _with_signature(file: GenesisFile, number: int, signature: bytes) -> GenesisFile:
    signatures = (*file.signatures[:number], signature, *file.signatures[number + 1 :])
    return msgspec.structs.replace(file, signatures=signatures)


def _rates_of(cards: Sequence[SignedCard], scenario: Scenario) -> list[int]:
    counts = [signed.card.label_counts for signed in cards]
    lengths = sorted({len(row) for row in counts})
    if len(lengths) > 1:
        raise BadGenesisFile(f"cards: labels numbering {' and '.join(map(str, lengths))}, as many on each expected")
    rates = participation_of(scenario, np.array(counts, dtype=np.int64))
    return [count_units(float(rate), NANO, f"participation rate of member {i}") for i, rate in enumerate(rates)]


def _validate_members(file: GenesisFile, scenario: Scenario) -> None:
    name = bytes.fromhex(scenario_digest(scenario))
    members = file.genesis.members
    for number, (signed, expected) in enumerate(zip(file.cards, members_of(file.cards, scenario), strict=True)):
        found, who = members[number], f"member {number} ({signed.card.name})"
        if signed.card.scenario != name:
            raise BadGenesisFile(f"{who}: its card is for another scenario")
        if signed.card.client not in (None, number):
            raise BadGenesisFile(f"{who}: its card is that of client {signed.card.client}")
        if abs(found.limits.rate_nano - expected.limits.rate_nano) > _RATE_SLACK:
            rates = f"{found.limits.rate_nano / NANO:g} given, {expected.limits.rate_nano / NANO:g}"
            raise BadGenesisFile(f"{who}: participation rate {rates} expected from the cards' labels")
        limits = msgspec.structs.replace(expected.limits, rate_nano=found.limits.rate_nano)
        if found != msgspec.structs.replace(expected, limits=limits):
            raise BadGenesisFile(f"{who}: the genesis says other than its card of key, limits or conditions")


def _read_name(certificate: bytes) -> str:
    try:
        return common_name_of(validate_access_point(certificate))
    except ValueError as error:  # cryptography's message on a malformed certificate
        raise BadGenesisFile(f"access point: {error}, a certificate in DER expected") from None


def _validate_access_points(file: GenesisFile) -> None:
    listed = file.genesis.access_points
    are_listed = [digest(certificate) for certificate in file.access_points] == [one.certificate for one in listed]
    if not are_listed or describe_access_points(file.access_points) != listed:
        names = ", ".join(point.name for point in listed) or "none"
        raise BadGenesisFile(f"access points: the genesis lists {names}, their certificates expected in this order")


def _validate_rules(file: GenesisFile, scenario: Scenario) -> None:
    """Raise unless every field follows from scenario and cards, except schedule and scheduler version."""
    genesis = file.genesis
    expected = draft_genesis(
        scenario,
        genesis.members,
        read_layout(genesis.model),
        file.initial_model,
        target_ms=mining_target_ms(scenario),
        access_points=genesis.access_points,
        time_ms=genesis.time_ms,
    )
    scheduler = msgspec.structs.replace(expected.scheduler, version=genesis.scheduler.version)
    expected = msgspec.structs.replace(expected, scheduler=scheduler, schedule=genesis.schedule)
    for field in expected.__struct_fields__:
        if getattr(expected, field) != getattr(genesis, field):
            raise BadGenesisFile(f"{field}: the genesis says other than its scenario")


# The scenario of a live network: its defaults, and limits on one that comes from other members.


class BadAgreement(BdflError):
    """A scenario that cannot found a live network."""


def load_live_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Load a scenario as `load_scenario` does, with defaults for a network of real machines.

    They are `ledger.quorum = "bft"` and `ledger.work = "argon2id"`. In measured mode `radio.bandwidth_hz` is 1 GHz, so
    that the modelled uplink can be as fast as the real one.
    """
    defaults = [default for default in _AMONG_MACHINES if not _is_set(path, default)]
    scenario = load_scenario(path, [*defaults, *overrides])
    if scenario.live.mode is LiveMode.MEASURED and not _is_set(path, _MEASURED):
        return load_scenario(path, [*defaults, _MEASURED, *overrides])
    return scenario


def write_scenario(scenario: Scenario) -> str:
    """Encode the scenario as all members store it; raises `BadAgreement` if it uses files others do not have."""
    for table, trace in named_traces(scenario).items():
        raise BadAgreement(f"{table}.trace: {trace} given, which the others do not have; none expected")
    return dump_scenario(scenario)


def read_scenario(text: str, allowed: frozenset[str] = frozenset()) -> Scenario:
    """Parse an untrusted scenario, which must be encoded as by `write_scenario`.

    Functions that it names would run here, so each must be `allowed`.
    """
    try:
        scenario = parse_scenario(parse_toml(text))
    except tomllib.TOMLDecodeError as error:
        raise BadAgreement(f"scenario: not TOML: {one_line(error)}") from None
    except RecursionError:
        raise BadAgreement("scenario: nested too deeply, a scenario in TOML expected") from None
    if write_scenario(scenario) != text:
        raise BadAgreement("scenario: not in the form that bdfl genesis new writes")
    learning = scenario.learning
    for shown in (
        scenario.name,
        scenario.data.source,
        learning.model,
        learning.aggregation.rule,
        scenario.scheduler.name,
    ):
        if not shown.isprintable():
            raise BadAgreement(f"scenario: {shown!r} in it, names that can be printed expected")
    validate_allowed(scenario, allowed)
    return scenario


def mining_target_ms(scenario: Scenario) -> int:
    """Return the target time to mine a block (ms); 0 if mining is modelled at constant difficulty."""
    return 0 if scenario.live.mode is LiveMode.EMULATE else max(1, round(scenario.live.block_s * 1000))


def _is_set(path: Path, override: str) -> bool:
    """Return whether a file sets the key of an override; False for an invalid file, which `load_scenario` reports."""
    section, _, key = override.partition("=")[0].partition(".")
    try:
        table = parse_toml(read_regular(path, 4 * MAX_TOML_SIZE).decode()).get(section)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    return isinstance(table, dict) and key in table
