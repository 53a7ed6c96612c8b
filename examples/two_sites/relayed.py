"""Two sites on loopback with relays between them that are as slow and lossy as asked for: needs nothing."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sites import Program, Quality, access_point_program, node_program

from bdfl.localnet.network import find_ports
from campaigns.live_faults.relay import Relay
from campaigns.live_faults.wire import Wire


class Relayed:
    """The sites; nodes are behind access points.

    Nodes that listen would tell each other their addresses and connect past every relay, so these do not.
    """

    def __init__(self, points: list[str], relays: list[Relay]) -> None:
        """With one access point it is at the first site, and each node of the second has a relay of its own to it.

        With two there is one at each site, and all that crosses goes over one connection between them.
        """
        self._points = points
        self._relays = relays

    @property
    def num_access_points(self) -> int:
        return len(self._points)

    def programs(self, folder: Path, num_nodes: int, blocks: int) -> list[Program]:
        lines = [f"{host}:{port}" for host, port in (relay.address for relay in self._relays)]
        programs = [
            access_point_program(folder, number, listen=address, peers=lines if number else [])
            for number, address in enumerate(self._points)
        ]
        for number in range(num_nodes):
            peer = self._points[0] if number % 2 == 0 else self._far_peer(lines[number // 2 % len(lines)])
            programs.append(node_program(folder, number, blocks, (), listen=None, peers=[peer]))
        return programs

    def _far_peer(self, line: str) -> str:
        """Whom a node of the second site connects to."""
        return line if len(self._points) == 1 else self._points[1]

    def cut(self) -> None:
        for relay in self._relays:
            relay.cut()

    def heal(self) -> None:
        for relay in self._relays:
            relay.heal()

    def tell(self) -> str:
        told = [relay.traffic for relay in self._relays]
        return (
            f"{sum(each.num_bytes for each in told):,} bytes in {sum(each.segments for each in told):,} segments, "
            f"{sum(each.stalls for each in told):,} of them lost at first, "
            f"on {sum(each.connections for each in told)} connections"
        )


@contextmanager
def open_relayed(quality: Quality, seed: int, num_nodes: int, num_access_points: int) -> Iterator[Relayed]:
    """The two sites; nothing of them is left afterwards."""
    points = find_ports(num_access_points)
    host, _, port = points[0].rpartition(":")
    wire = Wire(delay_s=quality.delay_ms / 1e3, loss=quality.loss_percent / 100)
    num_relays = 1 if num_access_points > 1 else num_nodes // 2
    with ExitStack() as resources:
        relays = [
            resources.enter_context(Relay((host, int(port)), wire, seed=seed + number)) for number in range(num_relays)
        ]
        yield Relayed(points, relays)
