"""Two halves of a network with a slow, lossy line between them: blocks go on.

All nodes are behind one access point, half of them at its place, each of the others behind a relay of its own: nodes
that listen would tell each other their addresses, and connect past every relay.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bdfl.operation.local_network import Route
from campaigns.live_faults.harness import Arena
from campaigns.live_faults.relay import Relay
from campaigns.live_faults.results import Figures
from campaigns.live_faults.wire import Wire

NUM_ACCESS_POINTS = 1
WIRE = Wire(delay_s=0.1, loss=0.02)


@contextmanager
def open_lines(seed: int, wire: Wire = WIRE) -> Iterator[tuple[Route, list[Relay]]]:
    """How nodes find the access point: every other one by a relay, which is opened as it is asked for."""
    with ExitStack() as resources:
        relays: list[Relay] = []

        def route(number: int, points: Sequence[str]) -> Sequence[str]:
            if number % 2 == 0:
                return points
            host, _, port = points[0].rpartition(":")
            relays.append(resources.enter_context(Relay((host, int(port)), wire, seed=seed + number)))
            address = relays[-1].address
            return [f"{address[0]}:{address[1]}"]

        yield route, relays


def play_slow_line(arena: Arena, relays: Sequence[Relay], num_blocks: int = 5) -> Figures:
    """So many blocks over the line."""
    began_s, before = time.monotonic(), arena.height_of()
    arena.wait_for_blocks(num_blocks)
    passed = [relay.traffic for relay in relays]
    num_bytes, num_stalls = sum(one.num_bytes for one in passed), sum(one.stalls for one in passed)
    return Figures(
        num_trials=len(relays),
        block_s=(time.monotonic() - began_s) / max(1, arena.height_of() - before),
        note=f"{num_bytes / 1e6:.1f} MB over {len(relays)} lines, {num_stalls} segments lost at first",
    )
