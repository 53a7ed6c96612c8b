"""Page of a client: its rounds, mined blocks, contributions and offences."""

from collections.abc import Callable, Sequence

import numpy as np

from bdfl.audit.block_summary import describe_offence, sample_weights
from bdfl.audit.plain import to_plain
from bdfl.explorer.chain_view import Found
from bdfl.explorer.columns import DECLINED, DELIVERED, MISSED, Columns
from bdfl.explorer.documents import ClientDocument, ClientRow, ContributionRow, OffenceRow
from bdfl.explorer.story import member_rounds, tell_client
from bdfl.ledger.block import Limits
from bdfl.ledger.roll import find_evidence, offender_of
from bdfl.ledger.units import CAPACITANCE, MICROWATT
from bdfl.scenario.privacy import MICRO

_POINTS = 2000
_MAX_CONTRIBUTIONS = 100
_MAX_MINED = 1000
_MAX_OFFENCES = 50


def show_client(
    client: ClientRow,
    limits: Limits,
    columns: Columns,
    *,
    find: Callable[[int], Found],
    num_votes: int,
    num_reports: int,
    convicted_in: Sequence[int],
    is_mean: bool,
) -> ClientDocument:
    """Return the page; `find` reads a block, `is_mean` is true if weights follow from sample counts."""
    number, num_rounds = client.client, columns.num_rows
    states = columns["client_state"][:, number] if num_rounds else np.zeros(0, np.uint8)
    given = np.flatnonzero(states == DELIVERED) + 1
    num_member = member_rounds(client, num_rounds)
    return ClientDocument(
        client=number,
        name=client.name,
        public_key=client.public_key,
        samples=client.samples,
        rate=client.rate,
        since=client.since,
        until=client.until,
        share=given.size / num_member if num_member else None,
        epsilon=_epsilon(number, find(int(given[-1]))) if given.size else None,
        cycles=float(limits.cycles),
        capacitance=limits.capacitance / CAPACITANCE,
        power_w=limits.power_uw / MICROWATT,
        power_max_w=limits.power_max_uw / MICROWATT,
        model_bits=float(limits.model_bits),
        cpu_max_hz=None if limits.cpu_max_hz is None else float(limits.cpu_max_hz),
        mining_max_hz=None if limits.mining_max_hz is None else float(limits.mining_max_hz),
        mined=(np.flatnonzero(columns["proposer"] == number)[-_MAX_MINED:] + 1).tolist(),
        contributions=[
            _contribution(number, find(height), is_mean) for height in given[::-1][:_MAX_CONTRIBUTIONS].tolist()
        ],
        num_contributions=int(given.size),
        num_declined=int(np.count_nonzero(states == DECLINED)),
        num_missed=int(np.count_nonzero(states == MISSED)),
        num_votes=num_votes,
        num_reports=num_reports,
        offences=[offence for height in convicted_in[-_MAX_OFFENCES:] for offence in _offences(number, find(height))],
        rounds=tell_client(columns, number, _POINTS),
    )


def _contribution(client: int, found: Found, is_mean: bool) -> ContributionRow:
    weight = None
    if is_mean and found.block is not None:
        weight = sample_weights(found.block).get(client)
    return ContributionRow(height=found.height, weight=weight, update_norm=None)


def _epsilon(client: int, found: Found) -> float | None:
    """Return the epsilon stated by the client's update in that block; None if training is not private."""
    if found.block is None:
        return None
    spent_micro = {signed.update.client: signed.update.epsilon_micro for signed in found.block.body.updates}
    return spent_micro[client] / MICRO if spent_micro.get(client) else None


def _offences(client: int, found: Found) -> list[OffenceRow]:
    if found.block is None:
        return []
    return [
        OffenceRow(
            height=found.height,
            kind=str(evidence.__struct_config__.tag),
            sentence=describe_offence(evidence),
            evidence=to_plain(evidence),
        )
        for evidence in find_evidence(found.block.body.entries)
        if offender_of(evidence) == client
    ]
