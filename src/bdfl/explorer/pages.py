"""Pages of a client, the network map, two runs compared and a model."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from bdfl.audit.export import to_plain
from bdfl.audit.lineage import describe_offence, sample_weights
from bdfl.explorer.block_page import to_db
from bdfl.explorer.block_source import Found
from bdfl.explorer.columns import (
    DECLINED,
    DELIVERED,
    MISSED,
    Columns,
    Values,
    Window,
    member_rounds,
    read_client_series,
    rounded,
)
from bdfl.explorer.documents import (
    AccessPointPlace,
    AccessPointRow,
    ClientDocument,
    ClientPlace,
    ClientRow,
    CompareDocument,
    ComparedRun,
    ContributionRow,
    Curve,
    Link,
    ModelDocument,
    NetworkDocument,
    OffenceRow,
    PairedDifference,
    Status,
)
from bdfl.explorer.worker_client import Positions
from bdfl.ledger.block import Block, Limits
from bdfl.ledger.costs import CAPACITANCE, MICROWATT
from bdfl.ledger.member_set import find_evidence, offender_of
from bdfl.radio import signal_to_noise, uplink_rate
from bdfl.scenario.schema_learning import MICRO

# Page of a client: its rounds, mined blocks, contributions and offences.

_CLIENT_POINTS = 2000
_MAX_CONTRIBUTIONS = 100
_MAX_MINED = 1000
_MAX_OFFENCES = 50


class MemberCounts:
    """Counts of votes and reports by member, and the heights of proven offences."""

    def __init__(self) -> None:
        self.votes: Counter[int] = Counter()  # in the certificate of a block, stored or in the next block
        self._voters: frozenset[int] = frozenset()  # in the certificate of the last block
        self.reports: Counter[int] = Counter()
        self.offences: dict[int, list[int]] = {}  # heights

    def take(self, found: Found) -> None:
        block = found.block
        if block is None:
            self._voters = frozenset()
            return
        later = {signed.vote.voter for signed in block.body.parent_certificate} - self._voters
        self._voters = frozenset(signed.vote.voter for signed in found.certificate)
        self.votes.update([*later, *self._voters])
        self.reports.update(signed.report.client for signed in block.body.reports)
        for evidence in find_evidence(block.body.entries):
            self.offences.setdefault(offender_of(evidence), []).append(found.height)


def show_client(client: ClientRow, columns: Columns) -> ClientDocument:
    """Return what the columns say of a client."""
    number, num_rounds = client.client, columns.num_rows
    num_given, num_declined, num_missed = (
        _heights(columns, number, state).size for state in (DELIVERED, DECLINED, MISSED)
    )
    num_member = member_rounds(client, num_rounds)
    mined: list[int] = (np.flatnonzero(columns["proposer"] == number)[-_MAX_MINED:] + 1).tolist()
    return ClientDocument(
        **asdict(client),
        share=num_given / num_member if num_member else None,
        mined=mined,
        num_contributions=num_given,
        num_declined=num_declined,
        num_missed=num_missed,
        rounds=read_client_series(columns, number, _CLIENT_POINTS),
    )


def show_member(
    client: ClientRow,
    limits: Limits,
    columns: Columns,
    counts: MemberCounts,
    find: Callable[[int], Found],
    *,
    is_mean: bool,
) -> ClientDocument:
    """Return what columns and chain say of a client.

    `find` reads a block, `is_mean` is true if weights follow from sample counts.
    """
    number = client.client
    given = _heights(columns, number, DELIVERED)
    convicted_in = counts.offences.get(number, [])[-_MAX_OFFENCES:]

    def weigh(block: Block | None) -> float | None:
        return sample_weights(block).get(number) if is_mean and block is not None else None

    return replace(
        show_client(client, columns),
        epsilon=_epsilon(number, find(int(given[-1]))) if given.size else None,
        cycles=float(limits.cycles),
        capacitance=limits.capacitance / CAPACITANCE,
        power_w=limits.power_uw / MICROWATT,
        power_max_w=limits.power_max_uw / MICROWATT,
        model_bits=float(limits.model_bits),
        cpu_max_hz=None if limits.cpu_max_hz is None else float(limits.cpu_max_hz),
        mining_max_hz=None if limits.mining_max_hz is None else float(limits.mining_max_hz),
        contributions=[
            ContributionRow(height=height, weight=weigh(find(height).block), update_norm=None)
            for height in given[::-1][:_MAX_CONTRIBUTIONS].tolist()
        ],
        num_votes=counts.votes[number],
        num_reports=counts.reports[number],
        offences=[offence for height in convicted_in for offence in _offences(number, find(height))],
    )


def _heights(columns: Columns, client: int, state: int) -> NDArray[np.int64]:
    """Return the rounds with the client in that state."""
    states = columns["client_state"][:, client] if columns.num_rows else np.zeros(0, np.uint8)
    return np.flatnonzero(states == state) + 1


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


# Map of a round: positions and channels of clients, selected, delivering and winning ones.


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """State of a round; lists have one entry per client, NaN where unknown."""

    round: int
    gain: list[float]
    power_w: list[float]  # transmit power, if it sends
    cpu_hz: list[float]
    mining_hz: list[float]
    reachable: frozenset[int]
    selected: frozenset[int]
    delivered: frozenset[int]
    winner: int | None
    bandwidth_hz: float | None
    noise_w_per_hz: float | None

    def is_there(self, client: ClientRow) -> bool:
        """Return whether the client is a member in this round."""
        return client.since <= self.round and (client.until is None or self.round <= client.until)


def draw_map(
    view: RoundView,
    clients: Sequence[ClientRow],
    access_points: Sequence[AccessPointRow],
    positions: Positions | None,
    status: Status | None,
    why: str | None,
) -> NetworkDocument:
    """Return the map; without `positions` positions are unknown, for the reason `why`."""
    online = {} if status is None else {node.number: node.is_online for node in status.nodes}
    points_online = [] if status is None else [point.is_online for point in status.access_points]
    num_placed = 0 if positions is None else len(positions.position_m)
    points_m = [] if positions is None else positions.access_point_m

    def name_node(node: int) -> str:
        return f"c{node}" if node < num_placed else f"a{node - num_placed}"

    return NetworkDocument(
        round=view.round,
        has_positions=positions is not None,
        access_points=[
            AccessPointPlace(
                name=access_points[number].name if number < len(access_points) else f"access point {number}",
                x_m=round(points_m[number][0], 2) if number < len(points_m) else None,
                y_m=round(points_m[number][1], 2) if number < len(points_m) else None,
                is_online=points_online[number] if number < len(points_online) else None,
            )
            for number in range(max(len(access_points), len(points_m)))
        ],
        clients=[_place(one, view, positions, online) for one in clients if view.is_there(one)],
        links=[] if positions is None else [Link(a=name_node(a), b=name_node(b)) for a, b in positions.links],
        why=why,
    )


def _place(client: ClientRow, view: RoundView, positions: Positions | None, online: Mapping[int, bool]) -> ClientPlace:
    number = client.client
    gain, power_w = view.gain[number], view.power_w[number]
    placed = positions if positions is not None and number < len(positions.position_m) else None
    ratio, rate = None, None
    if np.isfinite(gain) and view.bandwidth_hz is not None and view.noise_w_per_hz is not None:
        pair = np.array([power_w]), np.array([gain])
        ratio = to_db(float(signal_to_noise(view.bandwidth_hz, *pair, view.noise_w_per_hz)[0]))
        rate = float(f"{float(uplink_rate(view.bandwidth_hz, *pair, view.noise_w_per_hz)[0]):.5g}")
    return ClientPlace(
        client=number,
        name=client.name,
        x_m=None if placed is None else round(placed.position_m[number][0], 2),
        y_m=None if placed is None else round(placed.position_m[number][1], 2),
        access_point=None if placed is None else placed.access_point[number],
        gain_db=to_db(gain) if np.isfinite(gain) else None,
        snr_db=ratio,
        rate_bps=rate,
        is_reachable=number in view.reachable,
        is_selected=number in view.selected,
        is_delivered=number in view.delivered,
        is_winner=number == view.winner,
        is_online=online.get(number),
        cpu_hz=_of(view.cpu_hz, number),
        mining_hz=_of(view.mining_hz, number),
        power_w=power_w,
    )


def _of(values: Sequence[float], number: int) -> float:
    return float(values[number]) if number < len(values) else 0.0


# Comparison of runs: summaries, curves, and paired differences over common rounds.

FindIntervals: TypeAlias = Callable[[list[list[float]]], list[tuple[float, float]]]

_COMPARED_POINTS = 500
_MAX_RUNS = 8  # compared in pairs
_METRICS = (("accuracy", ""), ("loss", ""), ("delay_s", "s"), ("mining_s", "s"), ("mean_queue", ""))


def compare_runs(
    runs: Sequence[ComparedRun], columns: Sequence[Columns], find_intervals: FindIntervals
) -> CompareDocument:
    """Compare the runs; `find_intervals` computes means of differences and half their intervals, in the worker."""
    wanted = [
        (a, b, metric, unit, found)
        for a, b in combinations(range(min(len(runs), _MAX_RUNS)), 2)
        for metric, unit in _METRICS
        if (found := _differences(columns[a], columns[b], metric)).size
    ]
    intervals = find_intervals([found.tolist() for *_, found in wanted]) if wanted else []
    paired = [
        PairedDifference(
            a=runs[a].run, b=runs[b].run, metric=metric, mean=mean, half_width=half_width, unit=unit, n=found.size
        )
        for (a, b, metric, unit, found), (mean, half_width) in zip(wanted, intervals, strict=True)
    ]
    curves = [_curve(one.run, found) for one, found in zip(runs, columns, strict=True)]
    return CompareDocument(runs=list(runs), curves=curves, paired=paired)


def _differences(first: Columns, second: Columns, metric: str) -> Values:
    """Return the differences by round, where both values are known."""
    last = min(first.num_rows, second.num_rows)
    found = first[metric][:last] - second[metric][:last]
    known: Values = found[np.isfinite(found)]
    return known


def _curve(run: int, columns: Columns) -> Curve:
    window = Window(columns, 1, columns.num_rows, _COMPARED_POINTS)
    return Curve(
        run=run,
        round=window.rounds,
        time_s=rounded(window.ends(window.values("time_s")), 8),
        accuracy=rounded(window.latest(window.values("accuracy")), 5),
        delay_s=rounded(window.means(window.values("delay_s")), 5),
        mean_queue=rounded(window.means(window.values("mean_queue")), 5),
    )


# Page of a model


def add_accuracies(page: ModelDocument, accuracy_of: Callable[[int], float | None]) -> ModelDocument:
    """Return the page with the accuracies of its models; `accuracy_of` returns that of the model after a block."""
    return replace(
        page,
        accuracy=accuracy_of(page.height),
        parents=[replace(one, accuracy=accuracy_of(one.height)) for one in page.parents],
        compare=page.compare and replace(page.compare, accuracy=accuracy_of(page.compare.other)),
    )
