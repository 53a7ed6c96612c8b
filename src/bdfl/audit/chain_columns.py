"""A chain as tables for spreadsheets and data frames; column names contain the units.

Digests, keys and signatures are hexadecimal text; missing values are null.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import pyarrow

from bdfl.audit.block_summary import describe_change, sample_weights, show_utc
from bdfl.audit.summary import summarise_members
from bdfl.ledger.block import Block
from bdfl.ledger.keeping import Store
from bdfl.ledger.roll import find_evidence, offender_of
from bdfl.ledger.units import ATTO, MICROWATT, NANO, PICOJOULE
from bdfl.scenario.privacy import MICRO

Cell = bool | int | float | str | list[int] | None
Row = dict[str, Cell]
Rows = Iterator[Row]

_WHOLE, _NUMBER, _TEXT, _FLAG = pyarrow.int64(), pyarrow.float64(), pyarrow.string(), pyarrow.bool_()

SCHEMAS: dict[str, pyarrow.Schema] = {
    "blocks": pyarrow.schema(
        {
            "height": _WHOLE,
            "digest": _TEXT,
            "parent": _TEXT,
            "time": _TEXT,
            "proposer": _WHOLE,
            "attempt": _WHOLE,
            "difficulty": _WHOLE,
            "is_empty": _FLAG,
            "num_updates": _WHOLE,
            "num_reports": _WHOLE,
            "num_votes": _WHOLE,
            "offenders": pyarrow.list_(_WHOLE),
            "change": _TEXT,
            "exchange_s": _NUMBER,
            "mining_s": _NUMBER,
            "delay_s": _NUMBER,
            "energy_j": _NUMBER,
            "objective": _NUMBER,
            "reason": _TEXT,
            "model": _TEXT,
        }
    ),
    "updates": pyarrow.schema(
        {
            "height": _WHOLE,
            "client": _WHOLE,
            "samples": _WHOLE,
            "size": _WHOLE,
            "is_declined": _FLAG,
            "weight": _NUMBER,
            "epsilon": _NUMBER,
            "model": _TEXT,
            "signature": _TEXT,
        }
    ),
    "schedules": pyarrow.schema(
        {
            "height": _WHOLE,
            "member": _WHOLE,
            "is_selected": _FLAG,
            "cpu_hz": _WHOLE,
            "power_w": _NUMBER,
            "mining_hz": _WHOLE,
            "energy_j": _NUMBER,
            "next_queue": _NUMBER,
        }
    ),
    "reports": pyarrow.schema(
        {
            "height": _WHOLE,
            "client": _WHOLE,
            "round": _WHOLE,
            "gain": _NUMBER,
            "energy_budget_j": _NUMBER,
            "is_reachable": _FLAG,
            "receipt_round": _WHOLE,
            "receipt_energy_j": _NUMBER,
            "receipt_training_s": _NUMBER,
            "receipt_upload_s": _NUMBER,
            "receipt_mining_s": _NUMBER,
        }
    ),
    "votes": pyarrow.schema(
        {
            "height": _WHOLE,
            "voter": _WHOLE,
            "kind": _TEXT,
            "attempt": _WHOLE,
            "mining_ms": _WHOLE,
            "num_updates": _WHOLE,
            "num_reports": _WHOLE,
            "signature": _TEXT,
        }
    ),
    "evidence": pyarrow.schema({"height": _WHOLE, "offender": _WHOLE, "kind": _TEXT}),
    "members": pyarrow.schema(
        {
            "member": _WHOLE,
            "public_key": _TEXT,
            "samples": _WHOLE,
            "rate": _NUMBER,
            "since": _WHOLE,
            "until": _WHOLE,
            "scheduled": _WHOLE,
            "trained": _WHOLE,
            "declined": _WHOLE,
            "missing": _WHOLE,
            "reports": _WHOLE,
            "proposed": _WHOLE,
            "in_certificates": _WHOLE,
            "epsilon": _NUMBER,
            "queue": _NUMBER,
        }
    ),
}


def chain_rows(chain: Store, table: str) -> Rows:
    """Return the rows of one of the tables in `SCHEMAS`, by height and then by member."""
    if table == "members":
        return (asdict(member) for member in summarise_members(chain, chain.height))
    rows_of = _ROWS[table]
    return (row for block in chain.blocks() for row in rows_of(chain, block))


def _block_row(chain: Store, block: Block) -> Rows:
    header, body = block.header, block.body
    yield {
        "height": header.height,
        "digest": block.digest.hex(),
        "parent": header.parent.hex(),
        "time": show_utc(header.time_ms),
        "proposer": header.proposer,
        "attempt": header.attempt,
        "difficulty": header.difficulty,
        "is_empty": body.is_empty,
        "num_updates": len(body.updates),
        "num_reports": len(body.reports),
        "num_votes": len(chain.certificate(header.height)),
        "offenders": [offender_of(evidence) for evidence in find_evidence(body.entries)],
        "change": describe_change(block) or None,
        "exchange_s": body.modelled.exchange_ns / NANO,
        "mining_s": body.modelled.mining_ns / NANO,
        "delay_s": body.modelled.delay_ns / NANO,
        "energy_j": sum(body.modelled.energy_pj) / PICOJOULE,
        "objective": body.schedule.objective_nano / NANO if body.schedule.is_feasible else None,
        "reason": body.schedule.reason or None,
        "model": body.model.hex(),
    }


def _update_rows(chain: Store, block: Block) -> Rows:
    weights = sample_weights(block) if chain.genesis.law.aggregation == "mean" else {}
    for signed in block.body.updates:
        update = signed.update
        yield {
            "height": block.header.height,
            "client": update.client,
            "samples": update.samples,
            "size": update.size,
            "is_declined": update.is_declined,
            "weight": weights.get(update.client),
            "epsilon": update.epsilon_micro / MICRO if update.epsilon_micro else None,
            "model": update.model.hex() or None,
            "signature": signed.signature.hex(),
        }


def _schedule_rows(_: Store, block: Block) -> Rows:
    body = block.body
    places = {member: place for place, member in enumerate(body.schedule.selected)}
    for member, mining_hz in enumerate(body.schedule.mining_hz):
        place = places.get(member)
        yield {
            "height": block.header.height,
            "member": member,
            "is_selected": place is not None,
            "cpu_hz": _at(body.schedule.cpu_hz, place),
            "power_w": _measure(_at(body.schedule.power_uw, place), MICROWATT),
            "mining_hz": mining_hz,
            "energy_j": _measure(_at(body.modelled.energy_pj, member), PICOJOULE),
            "next_queue": _measure(_at(body.queue_nano, member), NANO),
        }


def _at(values: Sequence[int], place: int | None) -> int | None:
    """Return the value at a place; None if an invalid chain has too few."""
    return None if place is None or place >= len(values) else values[place]


def _measure(count: int | None, per_one: int) -> float | None:
    return None if count is None else count / per_one


def _report_rows(_: Store, block: Block) -> Rows:
    for signed in block.body.reports:
        report, receipt = signed.report, signed.report.receipt
        yield {
            "height": block.header.height,
            "client": report.client,
            "round": report.round,
            "gain": report.conditions.gain_atto / ATTO,
            "energy_budget_j": report.conditions.energy_budget_pj / PICOJOULE,
            "is_reachable": report.conditions.is_reachable,
            "receipt_round": None if receipt is None else receipt.round,
            "receipt_energy_j": None if receipt is None else receipt.energy_pj / PICOJOULE,
            "receipt_training_s": None if receipt is None else receipt.training_ns / NANO,
            "receipt_upload_s": None if receipt is None else receipt.upload_ns / NANO,
            "receipt_mining_s": None if receipt is None else receipt.mining_ns / NANO,
        }


def _vote_rows(chain: Store, block: Block) -> Rows:
    for signed in chain.certificate(block.header.height):
        vote = signed.vote
        yield {
            "height": block.header.height,
            "voter": vote.voter,
            "kind": vote.kind.value,
            "attempt": vote.attempt,
            "mining_ms": vote.mining_ms,
            "num_updates": len(vote.updates),
            "num_reports": len(vote.reports),
            "signature": signed.signature.hex(),
        }


def _evidence_rows(_: Store, block: Block) -> Rows:
    for evidence in find_evidence(block.body.entries):
        kind = str(evidence.__struct_config__.tag)
        yield {"height": block.header.height, "offender": offender_of(evidence), "kind": kind}


_ROWS: dict[str, Callable[[Store, Block], Rows]] = {
    "blocks": _block_row,
    "updates": _update_rows,
    "schedules": _schedule_rows,
    "reports": _report_rows,
    "votes": _vote_rows,
    "evidence": _evidence_rows,
}
