"""The audit report on a stored chain: its record, its signed file, and reading it back."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from bdfl import __version__
from bdfl.audit.lineage import NotOnChain, Trace, describe_change, describe_offence, show_utc, trace_model
from bdfl.audit.summary import (
    CERTIFICATES_NOTE,
    Judgement,
    MemberSummary,
    PrivacyAudit,
    Spending,
    audit_privacy,
    describe_privacy,
    summarise_members,
)
from bdfl.encoding import Digest, Record, Whole, digest, encode
from bdfl.errors import BdflError, MissingExtra, one_line, other_format
from bdfl.federation.genesis_file import BadGenesisFile, GenesisFile
from bdfl.federation.genesis_summary import spoken_digest
from bdfl.federation.keys import key_fingerprint
from bdfl.identity import Meaning, Place, Signer, is_signed, statement_digest
from bdfl.ledger.block import Block, Genesis, chain_id
from bdfl.ledger.member_set import find_evidence, offender_of
from bdfl.ledger.store import KnownHeight, Store
from bdfl.ledger.verify import Agreement, Failure, ModelCheck, Verification, verify_chain
from bdfl.scenario.schema_learning import is_function

# Audit of a stored chain as one record: verified checks, trusted assumptions and every member's part.

FORMAT = 1

Hex: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]  # a digest or a public key
Auditor: TypeAlias = Annotated[str, Meta(pattern=r"\Abdfl [0-9A-Za-z.+-]{1,40}\Z")]
Moment: TypeAlias = Annotated[str, Meta(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")]
OnProgress = Callable[[int, int], None]  # of blocks done and blocks in all


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a report."""


class Check(_Part, frozen=True):
    """A property that was verified."""

    subject: str
    count: int
    of: int | None  # the total; none: all of them
    what: str


class Trust(_Part, frozen=True):
    """An assumption that a chain cannot prove, or that this audit could not verify."""

    subject: str
    why: str


class Rules(_Part, frozen=True):
    """The rules that the genesis fixes."""

    scenario: str  # SHA-256
    quorum_rule: str
    work: str
    difficulty: int  # of the first block
    scheduler: str
    scheduler_version: str  # of bdfl
    aggregation: str
    min_updates: int
    privacy: str | None  # none: training is not private


class MemberAudit(_Part, frozen=True):
    """A member and its part in the verified blocks."""

    name: str | None  # as its card in the genesis file says; none: not known
    fingerprint: str
    rounds: int  # verified blocks of its time as a member
    participation: float | None  # share of these with an update that counts; none: no rounds
    proposed_share: float | None  # of all verified blocks
    part: MemberSummary
    privacy: Spending | None  # none: not private, or not recomputed here


class Event(_Part, frozen=True):
    """An offence that a block proves, or a change of membership that it makes."""

    block: int
    member: int | None  # the offender; none: a change of membership
    kind: str
    what: str


class AuditReport(_Part, frozen=True):
    """An auditor's report on a chain; all but `height` and `failure` covers the verified blocks only."""

    format: int
    auditor: Auditor  # software and version
    audited_at: Moment  # UTC, ISO 8601
    name: str
    chain: Hex  # digest of the genesis, which is the chain's id
    chain_words: str
    height: Whole  # blocks that are stored
    verified: Whole  # blocks found valid, from block 1 on
    checkpoint: int  # last block whose updates were pruned; 0: none
    founded: str  # by the genesis, UTC
    first_block: str | None  # its time, UTC; none: no block is verified
    last_block: str | None  # of the verified ones
    tip: Hex  # digest of the last verified block; of the genesis before block 1
    model: Hex  # digest of its model
    failure: Failure | None
    rules: Rules
    checks: tuple[Check, ...]
    trusted: tuple[Trust, ...]
    members: tuple[MemberAudit, ...]
    certificates_note: str
    events: tuple[Event, ...]
    lineage: Trace | None  # of the model after the last verified block; none: no block is verified

    @property
    def is_right(self) -> bool:
        """True if every block is valid and no member stated a wrong epsilon."""
        stated = [one.privacy.judgement for one in self.members if one.privacy is not None]
        return self.failure is None and all(one in (Judgement.RIGHT, Judgement.SILENT) for one in stated)


def audit_chain(
    chain: Store,
    *,
    audited_at: str,
    genesis_file: GenesisFile | None = None,
    own_functions: frozenset[str] = frozenset(),
    known: KnownHeight | None = None,
    on_progress: OnProgress | None = None,
) -> AuditReport:
    """Verify a chain and report on the blocks up to its end or the first failure, reading one at a time.

    `genesis_file` has the members' names and signatures. `own_functions` may be run, see `VerificationCache`.
    A chain shorter than the `known` height was truncated.
    """
    genesis, name = chain.genesis, chain_id(chain.genesis)
    if genesis_file is not None and genesis_file.chain != name:
        found = genesis_file.chain.hex()[:16]
        raise BadGenesisFile(f"genesis file: of chain {found}, that of chain {name.hex()[:16]} expected")
    last = chain.height

    def advance(height: int) -> None:
        if on_progress is not None:
            on_progress(height, last)

    verification = verify_chain(
        chain, own_functions=own_functions, known=known, on_block=lambda verdict: advance(verdict.height)
    )
    verified = len(verification.blocks)
    events: list[Event] = []

    def note(block: Block) -> None:
        events.extend(_events_of(block))
        advance(block.header.height)

    parts = summarise_members(chain, verified, note)
    privacy = _recompute_privacy(chain, verified)
    tip = chain.block(verified) if verified else None
    return AuditReport(
        format=FORMAT,
        auditor=f"bdfl {__version__}",
        audited_at=audited_at,
        name=genesis.name,
        chain=name.hex(),
        chain_words=spoken_digest(name),
        height=verification.height,
        verified=verified,
        checkpoint=verification.checkpoint,
        founded=show_utc(genesis.time_ms),
        first_block=None if tip is None else show_utc(chain.block(1).header.time_ms),
        last_block=None if tip is None else show_utc(tip.header.time_ms),
        tip=name.hex() if tip is None else tip.digest.hex(),
        model=(genesis.model.initial if tip is None else tip.body.model).hex(),
        failure=verification.failure,
        rules=_rules_of(genesis),
        checks=_list_checks(genesis, verification, parts, events, privacy, genesis_file),
        trusted=_list_trust(genesis, verification, privacy, genesis_file),
        members=tuple(_audit_member(one, verified, genesis_file, privacy) for one in parts),
        certificates_note=CERTIFICATES_NOTE,
        events=tuple(events),
        lineage=_trace_lineage(chain, verified),
    )


def _events_of(block: Block) -> list[Event]:
    height, change = block.header.height, describe_change(block)
    found = [
        Event(
            block=height,
            member=offender_of(evidence),
            kind=str(evidence.__struct_config__.tag),
            what=describe_offence(evidence),
        )
        for evidence in find_evidence(block.body.entries)
    ]
    return [*found, Event(block=height, member=None, kind="membership", what=change)] if change else found


def _recompute_privacy(chain: Store, verified: int) -> PrivacyAudit | None:
    """Return None if training is not private or Opacus is not installed."""
    if chain.genesis.privacy is None:
        return None
    try:
        return audit_privacy(chain, verified)
    except MissingExtra:
        return None


def _trace_lineage(chain: Store, verified: int) -> Trace | None:
    if verified == 0:
        return None
    try:
        return trace_model(chain, verified)
    except NotOnChain:  # pruned, and its rule's weights need the updates
        return trace_model(chain, verified, with_weights=False)


def _rules_of(genesis: Genesis) -> Rules:
    law = genesis.law
    return Rules(
        scenario=genesis.scenario.hex(),
        quorum_rule=law.quorum.value,
        work=law.work.value,
        difficulty=law.difficulty,
        scheduler=genesis.scheduler.name,
        scheduler_version=genesis.scheduler.version,
        aggregation=law.aggregation,
        min_updates=law.min_updates,
        privacy=None if genesis.privacy is None else describe_privacy(genesis.privacy),
    )


def _audit_member(
    part: MemberSummary, verified: int, genesis_file: GenesisFile | None, privacy: PrivacyAudit | None
) -> MemberAudit:
    names = () if genesis_file is None else genesis_file.names
    last = verified if part.until is None else min(part.until, verified)
    rounds = max(0, last - part.since + 1)
    return MemberAudit(
        name=names[part.member] if part.member < len(names) else None,
        fingerprint=key_fingerprint(bytes.fromhex(part.public_key)),
        rounds=rounds,
        participation=part.trained / rounds if rounds else None,
        proposed_share=part.proposed / verified if verified else None,
        part=part,
        privacy=None if privacy is None else privacy.members[part.member],
    )


def _list_checks(
    genesis: Genesis,
    found: Verification,
    parts: tuple[MemberSummary, ...],
    events: list[Event],
    privacy: PrivacyAudit | None,
    genesis_file: GenesisFile | None,
) -> tuple[Check, ...]:
    blocks, height = len(found.blocks), found.height
    recomputed, unchanged, pruned, trusted = (found.count_models(check) for check in ModelCheck)
    gone = pruned + trusted
    same, within, other = (found.count_schedules(agreement) for agreement in Agreement)
    num_updates = sum(one.trained + one.declined for one in parts)
    num_changes = sum(event.member is None for event in events)
    is_begun = found.failure is None or found.failure.block > 0
    checks: list[tuple[str, int, int | None, str]] = [
        ("Genesis", int(is_begun), 1, "its form, the first schedule, and the digest of the untrained model"),
        ("Links", blocks, height, "chain, height, parent's digest, and the body's Merkle root"),
        ("Times", blocks, height, "later than the median of the blocks before"),
        ("Proofs of work", blocks, height, "the difficulty that the chain asks for, and a hash below its target"),
        ("Certificates", blocks, height, "votes of a quorum of the members of that height, for this block"),
        ("Signatures", found.num_signatures, None, "Ed25519: blocks, updates, reports, votes, evidence and assents"),
        ("Updates", num_updates, None, "of scheduled members without an offence, with the agreed number of samples"),
        ("Reports", sum(one.reports for one in parts), None, "of members, for the right round, within range"),
        ("Models", recomputed, recomputed + gone, "aggregated again from the updates, equal in every bit"),
        ("Empty blocks", unchanged, None, "too few updates, and the model stayed as it was"),
        ("Schedules played", blocks, height, "the one that the block before had fixed"),
        ("Schedules planned", blocks, height, "C1 to C3 and the objective, in 40 decimal digits"),
        ("Scheduler run again", same + within, blocks, f"{same:,} the same, {within:,} within the voters' tolerance,"
         f" {other:,} another (valid) one"),
        ("Queues", blocks, height, "participation owed, derived again"),
        ("Modelled receipts", blocks, height, "delay and energy by the cost model, derived again"),
        ("Evidence", len(events) - num_changes, None, "offences proven by what the offender signed"),
        ("Changes of membership", num_changes, None, "with the assents of a quorum"),
    ]  # fmt: skip
    if gone:
        checks.append(("Merkle proofs", gone, gone, "blocks whose pruned updates are proven to be in them"))
    if genesis.privacy is not None:
        checks.append(("Epsilons stated", num_updates, None, "every update states one, and none falls"))
    if privacy is not None:
        right = sum(one.judgement in (Judgement.RIGHT, Judgement.SILENT) for one in privacy.members)
        confirmed = f"members' statements that the accountant ({privacy.accountant}) confirms"
        checks.append(("Epsilons recomputed", right, len(parts), confirmed))
    if genesis_file is not None:
        num_members, num_missing = len(genesis.members), len(genesis_file.missing_signatures)
        agreed = "members that agreed to this very genesis"
        checks.append(("Genesis signatures", num_members - num_missing, num_members, agreed))
    return tuple(Check(subject=subject, count=count, of=of, what=what) for subject, count, of, what in checks)


def _list_trust(
    genesis: Genesis, found: Verification, privacy: PrivacyAudit | None, genesis_file: GenesisFile | None
) -> tuple[Trust, ...]:
    pruned, other = found.count_models(ModelCheck.PRUNED), found.count_schedules(Agreement.DIFFERENT)
    named = "Names are what members' own cards say. " if genesis_file is not None else ""
    trusted = {
        "Who the members are": f"{named}A key signs, not a person: compare fingerprints with their owners. Keys of a"
        " simulated run follow from its seed and prove nothing about people.",
        "The only history": "Whoever holds all keys can sign another valid chain. Compare the genesis digest and the"
        " tip with several members.",
        "Data": "The number of samples is each member's word, fixed in the genesis or its admission. That the data are"
        " what they are said to be, and lawfully held, is not on the chain.",
        "Training": "An update is proven to be the member's, not to come from training on its data.",
        "Channels, budgets and reachability": "Reports are signed and in range. What they say is the member's word.",
        "Measured receipts": "Energy and time that a round really took are the member's word.",
        "Time": "A block's time is its proposer's clock. Voters compare it with their own, which are not on the chain.",
    }
    if genesis.law.target_ms:
        trusted["Mining times"] = "The difficulty follows the waits that voters state."
    if pruned:
        trusted["Pruned models"] = (
            f"The updates of {pruned:,} blocks up to block {found.checkpoint:,} are gone: a quorum voted for these"
            " models, and they were not aggregated again."
        )
    if found.trusted:
        trusted["Models never recomputed"] = (
            f"The updates of {len(found.trusted):,} blocks, {found.trusted[0]:,} to {found.trusted[-1]:,}, were gone"
            " when the node that stored the chain caught up: it took these models on the word of a quorum."
        )
    if other:
        trusted["Other schedules"] = (
            f"{other:,} schedules keep all rules but are not the ones that the scheduler makes here: another version or"
            " processor, a later attempt, or the proposer's choice."
        )
    if genesis.privacy is not None:
        again = "" if privacy is not None else " Epsilons were not recomputed here; bdfl chain privacy does so."
        trusted["Privacy"] = f"That members clipped and added the noise agreed on is their word.{again}"
    if is_function(genesis.law.rule):
        trusted["Aggregation"] = f"Models were aggregated by {genesis.law.rule}, code from outside bdfl."
    if found.failure is not None:
        trusted["Later blocks"] = "Nothing is said of the block that failed and of those after it."
    return tuple(Trust(subject=subject, why=why) for subject, why in trusted.items())


# An audit report as a file: JSON in one line, with its digest and optionally the auditor's signature.

_MAX_SIZE = 256 * 2**20


class BadAudit(BdflError):
    """A file that is not an audit report, or was changed after it was written or signed."""


class AuditSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An auditor's signature of a report, in hexadecimal."""

    public_key: Hex
    signature: Annotated[str, Meta(pattern=r"\A[0-9a-f]{128}\Z")]


class AuditFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A report, the SHA-256 of its bytes in the file, and its signature if it has one."""

    report: AuditReport
    digest: Hex
    signature: AuditSignature | None

    def to_json(self) -> bytes:
        """Return the bytes of the file."""
        return msgspec.json.encode(self) + b"\n"


class _Attestation(Record, frozen=True):
    """Statement that an auditor signs, as AUDIT, at the height and on the tip that the report ends with."""

    report: Digest


class _Numbered(msgspec.Struct):
    format: int


class _Head(msgspec.Struct):
    """The part that files of all formats share."""

    report: _Numbered


def seal_audit(report: AuditReport, signer: Signer | None = None) -> AuditFile:
    """Return the file of a report, signed if a signer is given."""
    found = digest(msgspec.json.encode(report))
    if signer is None:
        return AuditFile(report, found.hex(), None)
    signature = signer.sign(Meaning.AUDIT, _place_of(report), _Attestation(found))
    return AuditFile(report, found.hex(), AuditSignature(signer.public_key.hex(), signature.hex()))


def read_audit(path: Path) -> AuditFile:
    """Read the file at `path`; raise `BadAudit` if any byte was changed or a signature is invalid."""
    try:
        with path.open("rb") as opened:
            data = opened.read(_MAX_SIZE + 1)
    except OSError as error:
        raise BadAudit(f"{path}: {error.strerror}, the JSON of an audit expected") from None
    if len(data) > _MAX_SIZE:
        raise BadAudit(f"{path}: more than {_MAX_SIZE} bytes, the JSON of an audit expected")
    try:
        return decode_audit(data)
    except BadAudit as error:
        raise BadAudit(f"{path}: {error}") from None


def decode_audit(data: bytes) -> AuditFile:
    """Decode the file; raise `BadAudit` if any byte was changed or a signature is not by the key it names."""
    try:
        number = msgspec.json.decode(data, type=_Head).report.format
        if number != FORMAT:
            raise BadAudit(other_format(number, FORMAT))
        file = msgspec.json.decode(data, type=AuditFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAudit(f"{one_line(error)}; the JSON of an audit expected") from None
    own = digest(msgspec.json.encode(file.report))
    if file.digest != own.hex():
        raise BadAudit(f"changed after it was written: digest {file.digest[:16]} found, {own.hex()[:16]} expected")
    if file.to_json() != data:
        raise BadAudit("changed after it was written: spaces or order of another writer found, the same bytes expected")
    if file.signature is not None:
        public_key, signature = (bytes.fromhex(one) for one in msgspec.structs.astuple(file.signature))
        statement = statement_digest(Meaning.AUDIT, _place_of(file.report), encode(_Attestation(own)))
        if not is_signed(public_key, signature, statement):
            raise BadAudit(f"another signature found, one by the key {public_key.hex()[:16]} that it names expected")
    return file


def _place_of(report: AuditReport) -> Place:
    return Place(bytes.fromhex(report.chain), report.verified, bytes.fromhex(report.tip))
