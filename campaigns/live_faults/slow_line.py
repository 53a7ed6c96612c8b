"""A slow, lossy link between two halves of a network: blocks must go on.

All nodes are behind one access point: half of them directly, each of the others through its own relay. Nodes that
listen would gossip their addresses and connect past the relays.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bdfl.localnet.network import Route
from campaigns.live_faults.harness import Arena
from campaigns.live_faults.relay import Relay
from campaigns.live_faults.results import Figures
from campaigns.live_faults.wire import Wire

NUM_ACCESS_POINTS = 1
WIRE = Wire(delay_s=0.1, loss=0.02)


@contextmanager
def open_lines(seed: int, wire: Wire = WIRE) -> Iterator[tuple[Route, list[Relay]]]:
    """Yield a route to the access point, with a relay for every other node, and the relays opened so far."""
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
    """Make so many blocks over the link."""
    began_s, before = time.monotonic(), arena.height_of()
    arena.wait_for_blocks(num_blocks)
    passed = [relay.traffic for relay in relays]
    num_bytes, num_stalls = sum(one.num_bytes for one in passed), sum(one.stalls for one in passed)
    return Figures(
        num_trials=len(relays),
        block_s=(time.monotonic() - began_s) / max(1, arena.height_of() - before),
        note=f"{num_bytes / 1e6:.1f} MB over {len(relays)} lines, {num_stalls} segments lost at first",
    )
