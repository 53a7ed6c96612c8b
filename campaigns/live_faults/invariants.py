"""Invariants of a network after faults: its chains and its members' statements."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bdfl.encoding import encode
from bdfl.ledger.member_set import find_evidence
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import StoreError
from bdfl.ledger.verify import verify_chain
from bdfl.localnet.processes import node_folder, read_network
from bdfl.node.settings import CHAIN_FOLDER
from bdfl.transports.live.event_log import BrokenLog
from campaigns.live_faults.event_history import find_contradictions, find_forgotten, read_testimony
from campaigns.live_faults.harness import Left
from campaigns.live_faults.log_reader import Diary
from campaigns.live_faults.recovery import ROUNDS_TO_RETURN, Return, find_returns
from campaigns.live_faults.results import LiveBreach


def judge_aftermath(
    folder: Path, began_s: float = 0.0, left: Sequence[Left] = ()
) -> tuple[list[LiveBreach], list[Return]]:
    """Check all invariants of a network that has ended; also return how soon restarted nodes took part again.

    `began_s` is its start on the monotonic clock; `left` are the chains on disk at earlier ends of nodes.
    """
    numbers = range(read_network(folder).num_nodes)
    diaries = [Diary(node_folder(folder, number)).read() for number in numbers]
    breaches: list[LiveBreach] = []
    with ExitStack() as resources:
        stores: dict[int, ChainStore] = {}
        for number in numbers:
            try:
                path = node_folder(folder, number) / CHAIN_FOLDER
                stores[number] = resources.enter_context(ChainStore.open(path, read_only=True))
            except StoreError as error:
                breaches.append(LiveBreach(law="store", what=f"node {number}: {error}"))
        breaches += _judge_chains(stores)
        breaches += _judge_diaries(diaries, stores, began_s)
        breaches += _judge_left(left, stores)
        try:
            testimony = read_testimony(folder, numbers)
        except BrokenLog as error:
            return [*breaches, LiveBreach(law="record", what=str(error))], []
        breaches += [LiveBreach(law="one word", what=what) for what in find_contradictions(testimony)]
        breaches += [LiveBreach(law="memory", what=what) for what in find_forgotten(testimony)]
        returns = find_returns(testimony, stores, diaries)
    return breaches + _judge_returns(returns, began_s), returns


def _judge_chains(stores: dict[int, ChainStore]) -> list[LiveBreach]:
    """Check that every chain is valid and a prefix of the longest, without evidence: all members are honest."""
    breaches = []
    longest = max(stores.values(), key=lambda store: store.height, default=None)
    for number, store in stores.items():
        failure = verify_chain(store).failure
        if failure is not None:
            breaches.append(LiveBreach(law="validity", what=f"chain of node {number}: {failure}"))
        for height in range(1, store.height + 1):
            assert longest is not None
            if encode(store.block(height)) != encode(longest.block(height)):
                breaches.append(LiveBreach(law="agreement", what=f"block {height} of node {number} is another"))
                break
    for block in [] if longest is None else longest.blocks():
        for evidence in find_evidence(block.body.entries):
            what = f"{type(evidence).__name__} in block {block.header.height}, where all are honest"
            breaches.append(LiveBreach(law="one word", what=what))
    return breaches


def _judge_diaries(diaries: Sequence[Diary], stores: dict[int, ChainStore], began_s: float) -> list[LiveBreach]:
    """Check that every block a node once logged is still stored."""
    breaches = []
    for number, store in stores.items():
        for seen in diaries[number].blocks:
            if seen.height > store.height or not store.block(seen.height).digest.hex().startswith(seen.digest):
                what = f"node {number} had block {seen.height} ({seen.digest}) and has it no more"
                breaches.append(LiveBreach(law="memory", what=what, moment_s=seen.clock_s - began_s))
                break
    return breaches


def _judge_left(left: Sequence[Left], stores: dict[int, ChainStore]) -> list[LiveBreach]:
    """Check that the chain of a node at an earlier end is a prefix of its present one."""
    breaches = []
    for one in left:
        store = stores.get(one.node)
        if store is None or not one.height:
            continue
        if one.height > store.height or store.block(one.height).digest != one.tip:
            what = f"node {one.node} had block {one.height} on its disk when it ended, and has it no more"
            breaches.append(LiveBreach(law="memory", what=what, moment_s=one.moment_s))
    return breaches


def _judge_returns(returns: Sequence[Return], began_s: float) -> list[LiveBreach]:
    """Check that every restarted node takes part again within two rounds."""
    breaches = []
    for one in returns:
        moment_s = one.began_s - began_s
        if one.is_late and one.rounds is not None:
            what = f"node {one.node} voted again {one.rounds} rounds later, at most {ROUNDS_TO_RETURN} expected"
            breaches.append(LiveBreach(law="late", what=what, moment_s=moment_s))
        elif one.is_late:
            what = f"node {one.node} did not vote again, though {one.rounds_there} rounds were played while it ran"
            breaches.append(LiveBreach(law="return", what=what, moment_s=moment_s))
        if not one.has_reported:
            what = f"node {one.node} never reported again"
            breaches.append(LiveBreach(law="return", what=what, moment_s=moment_s))
    return breaches
