"""Pages of a client, of the network map, of a model, and of two runs compared."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

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
    rounded,
    tell_client,
)
from bdfl.explorer.documents import (
    AccessPointPlace,
    AccessPointRow,
    Ancestor,
    ClientDocument,
    ClientPlace,
    ClientRow,
    CompareDocument,
    ComparedRun,
    ContributionRow,
    Curve,
    LineageContribution,
    Link,
    ModelComparison,
    ModelDocument,
    NetworkDocument,
    OffenceRow,
    PairedDifference,
    Status,
    TensorDistance,
    WithoutDocument,
)
from bdfl.explorer.run import RoundView
from bdfl.explorer.worker_client import Pair, Paired, Places, Traced
from bdfl.ledger.block import Limits
from bdfl.ledger.costs import CAPACITANCE, MICROWATT
from bdfl.ledger.member_set import find_evidence, offender_of
from bdfl.radio import signal_to_noise, uplink_rate
from bdfl.scenario.schema_learning import MICRO

# Page of a client: its rounds, mined blocks, contributions and offences.

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


# Map of a round: positions and channels of clients, selected, delivering and winning ones.


def draw_map(
    view: RoundView,
    clients: Sequence[ClientRow],
    access_points: Sequence[AccessPointRow],
    places: Places | None,
    status: Status | None,
    why: str | None,
) -> NetworkDocument:
    """Return the map; without `places` positions are unknown, for the reason `why`."""
    online = {} if status is None else {node.number: node.is_online for node in status.nodes}
    points_online = [] if status is None else [point.is_online for point in status.access_points]
    num_points = len(access_points) if places is None else max(len(access_points), len(places.access_point_m))
    return NetworkDocument(
        round=view.round,
        has_positions=places is not None,
        access_points=[
            AccessPointPlace(
                name=access_points[number].name if number < len(access_points) else f"access point {number}",
                x_m=None if places is None else _at(places.access_point_m, number, 0),
                y_m=None if places is None else _at(places.access_point_m, number, 1),
                is_online=points_online[number] if number < len(points_online) else None,
            )
            for number in range(num_points)
        ],
        clients=[_place(one, view, places, online) for one in clients if view.is_there(one)],
        links=[] if places is None else [_link(pair, len(places.position_m)) for pair in places.links],
        why=why,
    )


def _place(client: ClientRow, view: RoundView, places: Places | None, online: Mapping[int, bool]) -> ClientPlace:
    number = client.client
    gain = view.gain[number] if number < len(view.gain) else float("nan")
    power_w = view.power_w[number] if number < len(view.power_w) else 0.0
    is_placed = places is not None and number < len(places.position_m)
    ratio, rate = None, None
    if np.isfinite(gain) and view.bandwidth_hz is not None and view.noise_w_per_hz is not None:
        pair = np.array([power_w]), np.array([gain])
        ratio = to_db(float(signal_to_noise(view.bandwidth_hz, *pair, view.noise_w_per_hz)[0]))
        rate = float(f"{float(uplink_rate(view.bandwidth_hz, *pair, view.noise_w_per_hz)[0]):.5g}")
    return ClientPlace(
        client=number,
        name=client.name,
        x_m=round(places.position_m[number][0], 2) if is_placed and places is not None else None,
        y_m=round(places.position_m[number][1], 2) if is_placed and places is not None else None,
        access_point=places.access_point[number] if is_placed and places is not None else None,
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


def _at(places: Sequence[tuple[float, float]], number: int, axis: int) -> float | None:
    return round(places[number][axis], 2) if number < len(places) else None


def _link(pair: tuple[int, int], num_clients: int) -> Link:
    a, b = (f"c{node}" if node < num_clients else f"a{node - num_clients}" for node in pair)
    return Link(a=a, b=b)


# Comparison of runs: summaries, curves, and paired differences over common rounds.

_COMPARED_POINTS = 500
_MAX_RUNS = 8  # compared in pairs
_METRICS = (("accuracy", ""), ("loss", ""), ("delay_s", "s"), ("mining_s", "s"), ("mean_queue", ""))


def compare_runs(
    runs: Sequence[ComparedRun], columns: Sequence[Columns], pair: Callable[[Pair], Paired] | None
) -> CompareDocument:
    """Compare the runs; `pair` computes the intervals in the worker process, without it there are none."""
    wanted = [
        (a, b, metric, unit, found)
        for a, b in combinations(range(min(len(runs), _MAX_RUNS)), 2)
        for metric, unit in _METRICS
        if (found := _differences(columns[a], columns[b], metric)).size
    ]
    paired: list[PairedDifference] = []
    if wanted and pair is not None:
        answer = pair(Pair(differences=[found.tolist() for *_, found in wanted]))
        for (a, b, metric, unit, found), mean, half_width in zip(wanted, answer.means, answer.half_widths, strict=True):
            paired.append(
                PairedDifference(
                    a=runs[a].run,
                    b=runs[b].run,
                    metric=metric,
                    mean=mean,
                    half_width=half_width,
                    unit=unit,
                    n=found.size,
                )
            )
    curves = [_curve(one.run, found) for one, found in zip(runs, columns, strict=True)]
    return CompareDocument(runs=list(runs), curves=curves, paired=paired)


def _differences(first: Columns, second: Columns, metric: str) -> Values:
    """Return the differences by round, where both values are known."""
    last = min(first.num_rows, second.num_rows)
    found = first[metric][:last] - second[metric][:last]
    known: Values = found[np.isfinite(found)]
    return known


def _curve(run: int, columns: Columns) -> Curve:
    if not columns.num_rows:
        return Curve(run=run, round=[], time_s=[], accuracy=[], delay_s=[], mean_queue=[])
    window = Window(columns, 1, columns.num_rows, _COMPARED_POINTS)
    return Curve(
        run=run,
        round=window.rounds,
        time_s=rounded(window.ends(window.values("time_s")), 8),
        accuracy=rounded(window.latest(window.values("accuracy")), 5),
        delay_s=rounded(window.means(window.values("delay_s")), 5),
        mean_queue=rounded(window.means(window.values("mean_queue")), 5),
    )


# Page of a model: contributors, lineage, and distances to another model and to itself without a client.


def show_model(
    height: int,
    traced: Traced,
    *,
    without: int | None,
    other: int | None,
    pruned_to: int,
    accuracy_of: Callable[[int], float | None],
) -> ModelDocument:
    """Return the page; `accuracy_of` returns the accuracy of the model after a block."""
    return ModelDocument(
        height=height,
        made_in=traced.made_in,
        model=traced.model,
        rule=traced.rule,
        is_stored=traced.is_stored,
        pruned_to=pruned_to,
        is_trusted=traced.is_trusted,
        accuracy=accuracy_of(height),
        contributions=[
            LineageContribution(**{name: getattr(one, name) for name in LineageContribution.__struct_fields__})
            for one in traced.contributors
        ],
        parents=[
            Ancestor(
                height=one.height,
                digest=one.digest,
                clients=one.clients,
                is_stored=one.is_stored,
                accuracy=accuracy_of(one.height),
                distance=one.distance,
            )
            for one in traced.parents
        ],
        compare=None if other is None else _show_comparison(other, traced, accuracy_of),
        without=None if without is None else _show_without(without, traced),
        why=None if traced.is_stored else f"the model's bytes are not kept: those up to block {pruned_to} were pruned",
    )


def _show_comparison(other: int, traced: Traced, accuracy_of: Callable[[int], float | None]) -> ModelComparison | None:
    found = traced.compared
    if found is None:
        return None
    return ModelComparison(
        other=other,
        digest=found.digest,
        distance=found.distance,
        relative=found.relative,
        accuracy=accuracy_of(other),
        tensors=[
            TensorDistance(**{name: getattr(one, name) for name in TensorDistance.__struct_fields__})
            for one in found.tensors
        ],
        why=found.why,
    )


def _show_without(client: int, traced: Traced) -> WithoutDocument | None:
    found = traced.left_out
    if found is None:
        return None
    return WithoutDocument(
        client=client,
        distance=found.distance,
        relative=found.relative,
        changed_in=found.changed_in,
        why=found.why,
    )
