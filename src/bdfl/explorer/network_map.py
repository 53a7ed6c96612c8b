"""Map of a round: positions and channels of clients, selected, delivering and winning ones."""

from collections.abc import Mapping, Sequence

import numpy as np

from bdfl.explorer.block_page import to_db
from bdfl.explorer.documents import (
    AccessPointPlace,
    AccessPointRow,
    ClientPlace,
    ClientRow,
    Link,
    NetworkDocument,
    Status,
)
from bdfl.explorer.orders import Places
from bdfl.explorer.round_view import RoundView
from bdfl.radio import signal_to_noise, uplink_rate


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
