"""A member's card: its key, data, processor and radio, signed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta, structs
from numpy.typing import NDArray

from bdfl.compute import training_energy
from bdfl.encoding import Digest, Record, Signature, Whole, encode
from bdfl.environment import draw_federation, draw_rounds, draw_samples
from bdfl.errors import BdflError
from bdfl.experiment.training_run import Federated, prepare_run
from bdfl.federation.keys import key_fingerprint
from bdfl.identity import Meaning, Place, Signer, is_public_key, is_signed, statement_digest
from bdfl.learning.training import num_local_steps
from bdfl.ledger.block import MAX_BUDGET_PJ, Conditions, Limits, MemberNumber, Text
from bdfl.ledger.costs import CAPACITANCE, MICROWATT, ONE, PICOJOULE, count_units
from bdfl.ledger.genesis import conditions_of, limits_of, physics_of
from bdfl.radio import BITS_PER_BYTE
from bdfl.scenario import LiveMode, LocalUnit, Scenario, scenario_digest
from bdfl.storage import read_record
from bdfl.transports.live.calibration import ROOT, Calibration, calibrate, read_battery
from bdfl.transports.live.certificates import make_authority, validate_authority
from bdfl.transports.live.measured_work import measured_gain
from bdfl.transports.live.training_process import DEALT, Setup, TrainingProcess
from bdfl.transports.live.training_worker import open_share

# Member card: a future member's key, label counts and machine limits, signed by its operator.

MAX_LABELS = 65_536
MAX_CERTIFICATE = 4096  # bytes
MAX_NAME = 60  # characters
_MAX_SIZE = 2**20  # bytes

LabelCounts: TypeAlias = Annotated[tuple[Whole, ...], Meta(min_length=1, max_length=MAX_LABELS)]
CertificateBytes: TypeAlias = Annotated[bytes, Meta(min_length=1, max_length=MAX_CERTIFICATE)]


class BadCard(BdflError):
    """A card that is inconsistent, or not signed by the key it names."""


class Card(Record, frozen=True):
    """A future member's self-description. All of it becomes public, including the number of samples of each label."""

    scenario: Digest  # for which it was made
    client: MemberNumber | None  # the scenario's client that it emulates; none: any
    name: Text  # for display
    public_key: Digest
    authority: CertificateBytes  # X.509 in DER: the member's CA, which issues its TLS certificates
    label_counts: LabelCounts
    limits: Limits  # with participation rate 0: rates follow from all members' labels
    conditions: Conditions  # of round 1


class SignedCard(Record, frozen=True):
    """A card, signed as CARD in the context of the scenario."""

    form: Literal["bdfl card 1"]
    card: Card
    signature: Signature


@dataclass(frozen=True)
class MemberProfile:
    """A member's data, machine and first conditions, in the chain's units."""

    label_counts: tuple[int, ...]
    limits: Limits  # with participation rate 0: rates follow from all members' labels
    conditions: Conditions  # of round 1


def make_card(signer: Signer, scenario: Scenario, name: str, client: int | None, profile: MemberProfile) -> SignedCard:
    """Make the signed card with which a member joins; raises `BadCard` if it is inconsistent.

    Its CA certificate is valid from now on.
    """
    card = Card(
        scenario=bytes.fromhex(scenario_digest(scenario)),
        client=client,
        name=name,
        public_key=signer.public_key,
        authority=make_authority(signer, key_fingerprint(signer.public_key)),
        label_counts=profile.label_counts,
        limits=profile.limits,
        conditions=profile.conditions,
    )
    signed = SignedCard("bdfl card 1", card, signer.sign(Meaning.CARD, _place(card), card))
    validate_card(signed)
    return signed


def validate_card(signed: SignedCard) -> None:
    """Raise `BadCard` unless the card is consistent and signed by the key it names."""
    card = signed.card
    if not card.name.isprintable() or not card.name.strip() or len(card.name) > MAX_NAME:
        raise BadCard(f"name: {card.name[:MAX_NAME]!r} given, 1 to {MAX_NAME} characters that can be printed expected")
    if not is_public_key(card.public_key):
        found = f"key {card.public_key.hex()} given"
        raise BadCard(f"card of {card.name!r}: {found}, a canonical point of edwards25519 not of small order expected")
    if not is_signed(card.public_key, signed.signature, statement_digest(Meaning.CARD, _place(card), encode(card))):
        raise BadCard(f"card of {card.name!r}: not signed by the key that it names: changed, or somebody else's")
    try:
        validate_authority(card.authority, card.public_key)
    except ValueError as error:  # cryptography's message on a malformed certificate
        raise BadCard(f"card of {card.name!r}: certificate: {error}") from None
    if sum(card.label_counts) != card.limits.samples:
        found = f"{sum(card.label_counts)} samples by label and {card.limits.samples} in all"
        raise BadCard(f"card of {card.name!r}: {found}, as many of one as of the other expected")
    if card.limits.rate_nano:
        raise BadCard(f"card of {card.name!r}: rate {card.limits.rate_nano} given, 0 expected: it follows from labels")


def describe_card(card: Card) -> dict[str, object]:
    """Return what a card makes public, for JSON."""
    return {
        "name": card.name,
        "client": card.client,
        "public_key": card.public_key.hex(),
        "fingerprint": key_fingerprint(card.public_key),
        "scenario": card.scenario.hex(),
        "label_counts": card.label_counts,
        "limits": structs.asdict(card.limits),
        "conditions": structs.asdict(card.conditions),
    }


def read_card(path: Path) -> SignedCard:
    """Read and validate a card."""
    signed = read_record(path, SignedCard, "card", _MAX_SIZE)
    try:
        validate_card(signed)
    except BdflError as error:
        raise BadCard(f"{path}: {error}") from None
    return signed


def _place(card: Card) -> Place:
    return Place(card.scenario, 0, bytes(32))


# Member profile: data, machine limits and first conditions, emulated by the scenario or measured.

_ROOM = 2.0  # mains-powered budget, in multiples of a round at full speed


class BadProfile(BdflError):
    """A profile that does not fit the federation."""


def find_profile(
    scenario: Scenario,
    text: str,
    initial_model: bytes,
    client: int | None,
    data: str,
    energy_budget_j: float | None = None,
) -> tuple[MemberProfile, Calibration | None]:
    """Return a member's profile once its data are tried with the model, and its machine's calibration if measured.

    `text` is the scenario as all members store it.
    """
    is_measured, is_dealt = scenario.live.mode is LiveMode.MEASURED, data == DEALT
    if client is None and (is_dealt or not is_measured):
        raise BadProfile("--client: none given, the number of the scenario's client that you play expected")
    place = client or 0
    is_flower = scenario.learning.flower is not None
    if is_flower and not is_dealt:
        raise BadProfile(f"--data: {data} given, none expected: a Flower client has its own")
    validate_client(scenario, place)
    counts = np.array(open_share(Setup(text, place, data, initial_model)).ready.label_counts)
    if is_dealt and not is_flower:
        federated = prepare_run(scenario)
        counts = federated.partition.label_counts[place]  # before the scenario poisons any
        if not is_measured:
            return emulated_profile(federated, place), None
    if not is_measured:
        return emulated_profile_of(scenario, place, counts), None
    machine, size = calibrate_here(scenario, place, data), len(initial_model)
    return measured_profile(scenario, place, counts, machine, size, energy_budget_j=energy_budget_j), machine


def emulated_profile(federated: Federated, client: int) -> MemberProfile:
    """Return a client's profile as the scenario draws it."""
    validate_client(federated.scenario, client)
    return MemberProfile(
        label_counts=_to_counts(federated.partition.label_counts[client]),
        limits=limits_of(federated.draws.federation, 0.0, client),
        conditions=conditions_of(federated.draws.states[0], client),
    )


def emulated_profile_of(scenario: Scenario, client: int, label_counts: NDArray[np.int64]) -> MemberProfile:
    """Return a client's profile as the scenario draws it, but with its own label counts, (labels,)."""
    validate_client(scenario, client)
    samples = draw_samples(scenario)
    samples[client] = label_counts.sum()
    federation = draw_federation(scenario, samples)
    first = next(draw_rounds(scenario, federation))
    return MemberProfile(_to_counts(label_counts), limits_of(federation, 0.0, client), conditions_of(first, client))


def measured_profile(
    scenario: Scenario,
    client: int,
    label_counts: NDArray[np.int64],
    calibration: Calibration,
    model_size: int,
    *,
    energy_budget_j: float | None = None,
    root: Path = ROOT,
) -> MemberProfile:
    """Return the profile of a calibrated machine with these label counts, (labels,).

    Cycles, frequencies and uplink come from the calibration; capacitance and power cannot be measured and come from the
    scenario. The energy budget is the given one, else a fraction of a discharging battery, else ample.
    """
    validate_client(scenario, client)
    federation = draw_federation(scenario)
    capacitance, power_w = float(federation.capacitance[client]), float(federation.power_w[client])
    num_samples = int(label_counts.sum())
    cycles = calibration.cycles_per_sample * samples_seen(scenario, num_samples)
    cpu_hz = calibration.cpu_hz.value * calibration.threads
    mining_hz = calibration.hashes_per_s * scenario.ledger.cycles_per_hash
    limits = Limits(
        samples=num_samples,
        rate_nano=0,
        cycles=count_units(round(cycles), ONE, "cycles of a round"),
        capacitance=count_units(capacitance, CAPACITANCE, "compute.capacitance", least=1),
        power_uw=count_units(power_w, MICROWATT, "radio.power_w"),
        power_max_uw=count_units(float(federation.power_max_w[client]), MICROWATT, "radio.power_max_w"),
        model_bits=BITS_PER_BYTE * model_size,
        cpu_max_hz=count_units(round(cpu_hz), ONE, "processor's frequency", least=1),
        mining_max_hz=count_units(round(mining_hz), ONE, "mining frequency", least=1),
        initial_cpu_hz=count_units(round(cpu_hz), ONE, "processor's frequency", least=1),
        initial_mining_hz=count_units(round(mining_hz), ONE, "mining frequency", least=1),
    )
    if energy_budget_j is None:
        energy_budget_j = _find_budget_j(scenario, limits, model_size, calibration.uplink.value, root)
    conditions = Conditions(
        gain_atto=measured_gain(physics_of(scenario), limits, calibration.uplink.value),
        energy_budget_pj=count_units(
            min(energy_budget_j, MAX_BUDGET_PJ / PICOJOULE), PICOJOULE, "energy of a round", most=MAX_BUDGET_PJ
        ),
        is_reachable=True,
    )
    return MemberProfile(_to_counts(label_counts), limits, conditions)


def calibrate_here(scenario: Scenario, client: int, data: str = DEALT) -> Calibration:
    """Calibrate this machine by training on that client's partition, or on the member's own data."""
    with TrainingProcess(scenario, client, data) as training:
        return calibrate(training, scenario.ledger.work, threads=scenario.learning.threads)


def samples_seen(scenario: Scenario, num_samples: int) -> int:
    """Return how many samples a round of local training sees; for a Flower client only its data size is known."""
    learning, steps = scenario.learning, num_local_steps(scenario)
    if learning.flower is not None:
        return num_samples
    return steps * (num_samples if learning.unit is LocalUnit.EPOCHS else min(learning.batch, num_samples))


def _find_budget_j(scenario: Scenario, limits: Limits, model_size: int, uplink: float, root: Path) -> float:
    """Return a round's fraction of the battery; on mains power, `_ROOM` times a round at full speed, mining alone."""
    battery = read_battery(root)
    if battery is not None and battery.is_discharging:
        return battery.remaining_j / scenario.rounds
    capacitance, work = limits.capacitance / CAPACITANCE, physics_of(scenario).work_cycles
    cycles = np.array([limits.cycles, work], dtype=np.float64)
    speed_hz = np.array([limits.initial_cpu_hz, limits.initial_mining_hz], dtype=np.float64)
    upload_j = limits.power_uw / MICROWATT * model_size / uplink if uplink > 0 else 0.0
    return _ROOM * (float(training_energy(np.array(capacitance), cycles, speed_hz).sum()) + upload_j)


def validate_client(scenario: Scenario, client: int) -> None:
    """Raise `BadProfile` unless the scenario has that client."""
    if not 0 <= client < scenario.clients.count:
        raise BadProfile(f"client {client}: 0 to {scenario.clients.count - 1} expected, as clients.count says")


def _to_counts(values: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
