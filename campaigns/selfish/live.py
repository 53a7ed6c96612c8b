"""A withholding member among real processes: four nodes on loopback, one of which withholds its statements.

It is judged by its share of the blocks, and by how soon its removal, signed by the three others, is on the chain.
"""

import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bdfl.errors import BdflError
from bdfl.experiment.parallel import Progress
from bdfl.federation.genesis_file import load_live_scenario
from bdfl.federation.keys import load_key
from bdfl.federation.membership_change import propose_removal, read_members, sign_change_file, submit_change
from bdfl.ledger.block import Schedule
from bdfl.ledger.member_set import find_change
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.localnet.network import LocalNetwork, create_network, run_network
from bdfl.localnet.processes import node_folder
from bdfl.localnet.verdict import verify_network
from bdfl.node.settings import CHAIN_FOLDER
from bdfl.scenario import Scenario
from bdfl.scenario.files import find_scenario
from campaigns import importable
from campaigns.faults.laws import ENTRY_BLOCKS
from campaigns.faults.shares import hashing_share, is_too_large

NUM_NODES = 4
MEMBER = NUM_NODES - 1
SELFISH_MODULE = "campaigns.selfish.member"
UNGUARDED_MODULE = "campaigns.selfish.unguarded"
_ROUNDS = 100_000  # more than any of these networks reaches
_STALLED_S = 120.0
_POLL_S = 0.2


class Stalled(BdflError):
    """A live network that stopped making blocks, or lost a node."""


class LiveKind(StrEnum):
    """Behaviour of the last member, and voting rules of the others."""

    WITHHOLD = "withhold"
    HONEST = "honest"
    UNGUARDED = "withhold, no rules"  # the others vote without the rules of fair proposing


@dataclass(frozen=True)
class LiveRun:
    """Results of one live network."""

    seed: int
    kind: LiveKind
    blocks: int
    won: int  # by the last member
    expected: float  # its share of the hashing
    seconds: float  # duration of the blocks
    removal_blocks: int | None  # from the last block before the removal was offered to the one with it
    failures: tuple[str, ...]  # invalid or different chains, processes that had to be killed

    @property
    def broken(self) -> tuple[str, ...]:
        broken = ["chain"] if self.failures else []
        if self.kind is not LiveKind.UNGUARDED and is_too_large(self.won, self.blocks, self.expected):
            broken.append("share")
        if self.removal_blocks is None or self.removal_blocks > ENTRY_BLOCKS:
            broken.append("entry")
        return tuple(broken)


def live_scenario(seed: int, changes: tuple[str, ...] = ()) -> Scenario:
    """Return the live quick start with four members, two of which train."""
    own = [f"clients.count={NUM_NODES}", "clients.min_selected=2", f"seed={seed}", f"rounds={_ROUNDS}"]
    return load_live_scenario(find_scenario("live"), [*own, *changes])


def run_live(
    seed: int,
    num_blocks: int,
    *,
    kind: LiveKind = LiveKind.WITHHOLD,
    changes: tuple[str, ...] = (),
    on_progress: Progress | None = None,
) -> LiveRun:
    """Create a network, let it make so many blocks, then submit the last member's removal to all others."""
    modules = {} if kind is LiveKind.HONEST else {MEMBER: SELFISH_MODULE}
    if kind is LiveKind.UNGUARDED:
        modules |= dict.fromkeys(range(MEMBER), UNGUARDED_MODULE)
    with tempfile.TemporaryDirectory(prefix="selfish-") as place:
        folder = Path(place) / "network"
        create_network(folder, live_scenario(seed, changes), 0, None)
        with importable(), run_network(folder, evaluates=False, modules=modules) as network:
            _wait_for(network, 1)
            started_s = time.monotonic()
            _wait_for(network, num_blocks, on_progress)
            seconds = time.monotonic() - started_s
            offered_at = _offer_removal(folder)
            _wait_for(network, offered_at + ENTRY_BLOCKS)
            stubborn = network.stop()
        verdict = verify_network(folder)
        failures = [*(f"{name} had to be killed" for name in stubborn), *verdict.problems]
        won, expected, removed_at = _read_chain(folder, num_blocks)
    return LiveRun(
        seed=seed,
        kind=kind,
        blocks=num_blocks,
        won=won,
        expected=expected,
        seconds=seconds,
        removal_blocks=None if removed_at is None else removed_at - offered_at,
        failures=tuple(failures),
    )


def _wait_for(network: LocalNetwork, height: int, on_progress: Progress | None = None) -> None:
    """Block until all honest nodes have a block."""
    reached, newest_s = -1, time.monotonic()
    while reached < height:
        views = network.look().nodes[:MEMBER]
        lowest = min(0 if view.snapshot is None else view.snapshot.height for view in views)
        if lowest > reached:
            reached, newest_s = lowest, time.monotonic()
            if on_progress is not None:
                on_progress(min(reached, height), height)
        fallen = [child for child in network.nodes[:MEMBER] if not child.is_up]
        if fallen or time.monotonic() - newest_s > _STALLED_S:
            ended = "".join(f"; {child.name} ended: {child.last_words()}" for child in fallen)
            raise Stalled(f"block {reached} of {height}, no more{ended}")
        time.sleep(_POLL_S)


def _offer_removal(folder: Path) -> int:
    """Submit the removal, signed by all others, to all of them; return the greatest height after that."""
    others = [node_folder(folder, number) for number in range(MEMBER)]
    standing = read_members(others[0])
    change = propose_removal(standing, MEMBER, standing.height + _ROUNDS)
    for node in others:
        change = sign_change_file(change, standing, load_key(node / "key.pem"))
    for node in others:
        submit_change(node, change, standing)
    return max(read_members(node).height for node in others)


def _read_chain(folder: Path, num_blocks: int) -> tuple[int, float, int | None]:
    """Return the blocks won by the last member, its expected number, and the height of its removal."""
    won, expected, removed_at = 0, 0.0, None
    with ChainStore.open(node_folder(folder, 0) / CHAIN_FOLDER, read_only=True) as store:
        schedule: Schedule = store.genesis.schedule
        for block in store.blocks():
            if block.header.height <= num_blocks:
                won += block.header.proposer == MEMBER
                expected += hashing_share(schedule, MEMBER)
            if removed_at is None and find_change(block.body.entries) is not None:
                removed_at = block.header.height
            schedule = block.body.next_schedule
    return won, expected, removed_at
