"""Page of a block: sentences and all of its fields."""

import math
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from bdfl.audit.export import to_plain
from bdfl.audit.lineage import (
    describe_change,
    describe_offence,
    sample_weights,
    show_utc,
    summarise_block,
)
from bdfl.explorer.block_source import Found
from bdfl.explorer.documents import (
    MAX_LISTED,
    BlockDocument,
    BlockList,
    BlockRow,
    EntryRow,
    MemberRow,
    ModelledDocument,
    QueueRow,
    ReceiptDocument,
    ReportRow,
    ScheduleDocument,
    UpdateRow,
    VoteRow,
)
from bdfl.explorer.follower import is_member
from bdfl.ledger.block import (
    Block,
    Entry,
    Genesis,
    MembershipChange,
    Schedule,
    SignedReport,
    SignedUpdate,
    header_seal,
)
from bdfl.ledger.costs import ATTO, MICROWATT, NANO, PICOJOULE
from bdfl.ledger.member_set import MemberSet, find_evidence, offender_of
from bdfl.ledger.proof_of_work import highest_hash, work_hash
from bdfl.records.learning import LearningRound
from bdfl.scenario.schema_learning import MICRO


def show_block(
    found: Found,
    *,
    genesis: Genesis,
    roll: MemberSet,
    height: int,
    problem: str | None,
    queue_nano: Sequence[int],
    learned: LearningRound | None,
    accuracy: float | None,
    quorum: int | None,
) -> BlockDocument:
    """Return the page of a block; `queue_nano` are the queues before it, `height` is the chain's."""
    block = found.block
    page = BlockDocument(
        height=found.height,
        has_previous=found.height > 1,
        has_next=found.height < height,
        problem=problem,
        sentences=[] if block is None else describe_block(found, accuracy),
        size_bytes=found.size_bytes,
        is_verifiable=found.size_bytes is not None,
        members=[
            MemberRow(number=number, public_key=member.public_key.hex())
            for number, member in enumerate(roll.members)
            if is_member(roll, number, found.height)
        ],
        quorum=quorum,
    )
    if block is None:
        return page
    header, body, law = block.header, block.body, genesis.law
    weights = sample_weights(block) if law.rule == "mean" else {}
    outcomes = {} if learned is None else dict(zip(learned.selected, learned.outcome, strict=False))
    modelled = body.modelled
    return replace(
        page,
        digest=block.digest.hex(),
        parent=header.parent.hex(),
        time_ms=header.time_ms,
        proposer=header.proposer,
        attempt=header.attempt,
        difficulty=header.difficulty,
        work=law.work.value,
        work_hash=work_hash(law.work, header_seal(header), block.nonce).hex(),
        target=highest_hash(header.difficulty).hex(),
        nonce=block.nonce.hex(),
        signature=block.signature.hex(),
        body=header.body.hex(),
        model=body.model.hex(),
        model_bytes=genesis.model.size,
        is_empty=body.is_empty,
        reason=body.schedule.reason,
        schedule=show_schedule(body.schedule),
        next_schedule=show_schedule(body.next_schedule),
        updates=[_show_update(signed, weights, outcomes) for signed in body.updates],
        reports=[_show_report(signed) for signed in body.reports],
        votes=[
            VoteRow(
                voter=signed.vote.voter,
                mining_ms=signed.vote.mining_ms,
                signature=signed.signature.hex(),
                attempt=signed.vote.attempt,
                block=signed.vote.block.hex(),
                updates=list(signed.vote.updates),
                reports=list(signed.vote.reports),
            )
            for signed in found.certificate
        ],
        queue=[
            QueueRow(
                client=client, before=queue_nano[client] / NANO if client < len(queue_nano) else 0.0, after=after / NANO
            )
            for client, after in enumerate(body.queue_nano)
        ],
        modelled=ModelledDocument(
            exchange_s=modelled.exchange_ns / NANO,
            mining_s=modelled.mining_ns / NANO,
            delay_s=modelled.delay_ns / NANO,
            energy_j=[energy_pj / PICOJOULE for energy_pj in modelled.energy_pj],
        ),
        entries=[show_entry(entry, block) for entry in body.entries],
        accuracy=accuracy,
        loss=None if learned is None else learned.loss,
    )


def list_rows(height: int, first: int | None, last: int | None, show: Callable[[int], BlockRow]) -> BlockList:
    """Return a page of the rows up to `height`, by descending height."""
    last = height if last is None else min(last, height)
    least = last - MAX_LISTED + 1
    first = max(1, least if first is None else max(first, least))
    return BlockList(first=first, last=max(last, 0), height=height, blocks=list(map(show, range(last, first - 1, -1))))


def show_row(found: Found, problem: str | None, accuracy: float | None) -> BlockRow:
    """Return the row of a block in the list of blocks."""
    if found.block is None:
        return BlockRow(height=found.height, accuracy=accuracy, problem=problem)
    summary = summarise_block(found.block, found.certificate)
    row = msgspec.convert(summary, BlockRow, from_attributes=True)
    time_ms = found.block.header.time_ms
    return replace(row, height=found.height, time_ms=time_ms, accuracy=accuracy, problem=problem)


def show_schedule(schedule: Schedule) -> ScheduleDocument:
    """Return a schedule with one entry per client, 0 where idle, in SI units."""
    cpu_hz, power_w = [0.0] * len(schedule.mining_hz), [0.0] * len(schedule.mining_hz)
    for client, hz, power_uw in zip(schedule.selected, schedule.cpu_hz, schedule.power_uw, strict=False):
        if client < len(cpu_hz):
            cpu_hz[client], power_w[client] = float(hz), power_uw / MICROWATT
    return ScheduleDocument(
        round=schedule.round,
        selected=list(schedule.selected),
        cpu_hz=cpu_hz,
        power_w=power_w,
        mining_hz=[float(hz) for hz in schedule.mining_hz],
        objective=schedule.objective_nano / NANO if schedule.is_feasible else None,
        reason=schedule.reason,
    )


def _show_update(signed: SignedUpdate, weights: dict[int, float], outcomes: dict[int, str]) -> UpdateRow:
    update = signed.update
    outcome = "declined" if update.is_declined else "no-samples" if not update.samples else "trained"
    return UpdateRow(
        client=update.client,
        samples=update.samples,
        size=update.size,
        model=update.model.hex() or None,
        epsilon=update.epsilon_micro / MICRO,
        signature=signed.signature.hex(),
        outcome=outcomes.get(update.client, outcome),
        weight=weights.get(update.client),
    )


def _show_report(signed: SignedReport) -> ReportRow:
    report, conditions, receipt = signed.report, signed.report.conditions, signed.report.receipt
    gain = conditions.gain_atto / ATTO
    return ReportRow(
        client=report.client,
        gain=gain,
        gain_db=to_db(gain),
        energy_budget_j=conditions.energy_budget_pj / PICOJOULE,
        is_reachable=conditions.is_reachable,
        receipt=None
        if receipt is None
        else ReceiptDocument(
            round=receipt.round,
            energy_j=receipt.energy_pj / PICOJOULE,
            training_s=receipt.training_ns / NANO,
            upload_s=receipt.upload_ns / NANO,
            mining_s=receipt.mining_ns / NANO,
        ),
        signature=signed.signature.hex(),
    )


def show_entry(entry: Entry, block: Block) -> EntryRow:
    """Return evidence or a change of membership, with a sentence and all fields."""
    if isinstance(entry, MembershipChange):
        what = f"{describe_change(block)}, as {len(entry.assents)} members agreed"
        return EntryRow(kind="membership", offender=None, what=what, plain=to_plain(entry))
    kind = str(entry.__struct_config__.tag)
    return EntryRow(kind=kind, offender=offender_of(entry), what=describe_offence(entry), plain=to_plain(entry))


def describe_block(found: Found, accuracy: float | None) -> list[str]:
    """Describe a block in a few sentences."""
    block = found.block
    assert block is not None
    summary = summarise_block(block, found.certificate)
    header, body = block.header, block.body
    tries = "the first attempt" if header.attempt == 1 else f"attempt {header.attempt}"
    lines = [
        f"Client {header.proposer} began to mine this block at {show_utc(header.time_ms)}, by its own clock, and found"
        f" it in {tries}, after {header.difficulty} expected hashes."
    ]
    if summary.reason:
        lines.append(f"Nobody was scheduled to train in this round: {summary.reason}.")
    else:
        num = len(body.schedule.selected)
        lines.append(f"{_count(num, 'client')} scheduled to train: {_list(body.schedule.selected)}.")
    if summary.trained:
        lines.append(f"{_count(len(summary.trained), 'update')} in it, of {_clients(summary.trained)}.")
    if summary.declined:
        lines.append(f"{_clients(summary.declined).capitalize()} trained and had nothing to give.")
    if summary.missing:
        lines.append(f"{_clients(summary.missing).capitalize()} did not deliver and will sit out.")
    if body.is_empty:
        lines.append("Too few updates arrived: the block is empty and the model stays as it was.")
    else:
        lines.append(f"Aggregated, they are the new global model {summary.model[:12]}.")
    if accuracy is not None:
        lines.append(f"It classifies {100 * accuracy:.2f} % of the test data correctly.")
    lines.append(
        f"By the cost model the round takes {summary.delay_s:.4g} s: {body.modelled.exchange_ns / NANO:.4g} s until the"
        f" slowest client has trained and uploaded, then {body.modelled.mining_ns / NANO:.4g} s of mining."
    )
    lines.append(
        f"{_count(summary.num_votes, 'vote', '')} in its certificate made it final; it carries"
        f" {_count(summary.num_reports, 'report', '')} for the next round."
    )
    if summary.change:
        lines.append(f"Membership changes: {summary.change}.")
    lines += [f"Evidence: {describe_offence(evidence)}." for evidence in find_evidence(body.entries)]
    following = body.next_schedule
    if following.is_feasible:
        lines.append(f"In round {following.round} {_clients(following.selected)} will train.")
    else:
        lines.append(f"In round {following.round} nobody will train: {following.reason}.")
    return lines


def _count(number: int, noun: str, verb: str | None = None) -> str:
    one, several = ("is", "are") if noun == "update" else ("was", "were")
    word = verb if verb is not None else one if number == 1 else several
    return f"{number} {noun}{'' if number == 1 else 's'} {word}".rstrip()


def _clients(numbers: Sequence[int]) -> str:
    return f"client{'' if len(numbers) == 1 else 's'} {_list(numbers)}"


def _list(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:20]]
    if len(numbers) > len(shown):
        return f"{', '.join(shown)} and {len(numbers) - len(shown)} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else "none"


def to_db(ratio: float) -> float | None:
    """Convert a power ratio to dB; None unless it is positive."""
    return round(10.0 * math.log10(ratio), 2) if ratio > 0 else None
