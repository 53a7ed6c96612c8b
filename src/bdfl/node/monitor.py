"""Observer of a running node: its current state and blocks, heights claimed by peers, and dropped messages."""

import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.chain import ChainState
from bdfl.node.log import NodeLog
from bdfl.node.status import LastBlock
from bdfl.protocol.events import (
    Commit,
    MessageArrived,
    Mine,
    NonceFound,
    StopMining,
    Train,
    TrainingFinished,
)
from bdfl.protocol.state import NodeState
from bdfl.transports.interfaces import LiveObserver, Transition

_MAX_REASONS = 64  # counted separately
_SAY_AGAIN_S = 60.0
_NUMBERS = re.compile(r"\b[0-9a-f]{8,}\b|\d+")


@dataclass
class _Reason:
    """A reason for drops that recurs, logged at most once per interval."""

    count: int = 0
    said_count: int = 0
    said_s: float = -_SAY_AGAIN_S


@dataclass(frozen=True)
class Moment:
    """A node's state after one event, consistent even while its effects are still being written."""

    state: NodeState
    block: Block | None  # the newest
    came_ns: int | None  # time of its decision here; none: before this start
    round_s: float | None  # since the previous block
    num_commits: int  # since this start
    num_failures: int  # consecutive trainings without a model

    @property
    def last_block(self) -> LastBlock | None:
        block, came_ns = self.block, self.came_ns
        if block is None:
            return None
        return LastBlock(
            height=block.header.height,
            digest=block.digest.hex(),
            proposer=block.header.proposer,
            attempt=block.header.attempt,
            age_s=None if came_ns is None else max(0, time.monotonic_ns() - came_ns) / 1e9,
            round_s=self.round_s,
            is_empty=block.body.is_empty,
            num_updates=len(block.body.updates),
        )


class Stopwatch:
    """Total time (s) of an activity."""

    def __init__(self) -> None:
        self._total_ns = 0
        self._since_ns: int | None = None

    def start(self, now_ns: int) -> None:
        if self._since_ns is None:
            self._since_ns = now_ns

    def stop(self, now_ns: int) -> None:
        if self._since_ns is not None:
            self._total_ns += max(0, now_ns - self._since_ns)
            self._since_ns = None

    @property
    def is_running(self) -> bool:
        return self._since_ns is not None

    def seconds(self, now_ns: int) -> float:
        since_ns = self._since_ns  # another thread may reset it
        return (self._total_ns + (0 if since_ns is None else max(0, now_ns - since_ns))) / 1e9


class NodeMonitor(LiveObserver):
    """Collects a node's status for its operator. Readable from any thread."""

    def __init__(
        self,
        log: NodeLog,
        on_round: Callable[[float], None] = lambda seconds: None,
        on_block: Callable[[Block, ChainState], None] = lambda block, chain: None,
    ) -> None:
        """`on_round` gets the time (s) between two blocks, `on_block` every block and its chain."""
        self._log = log
        self._on_round = on_round
        self._on_block = on_block
        self._lock = threading.Lock()
        self._kept_ns: int | None = None  # when the newest block was stored
        self._heard: dict[int, tuple[int, int]] = {}  # by member: highest height, time of last message
        self._reasons: dict[str, _Reason] = {}
        self.moment: Moment
        self.has_begun = False  # the first event was processed
        self.training = Stopwatch()
        self.mining = Stopwatch()

    def begin(self, state: NodeState, tip: Block | None) -> None:
        """Initialise with the node before its first event, and its newest stored block."""
        self.moment = Moment(state, tip, None, None, 0, 0)

    def stepped(self, now_ns: int, done: Transition) -> None:
        event, after = done.event, done.after
        is_higher = after.chain.height != done.before.chain.height
        if isinstance(event, TrainingFinished) or is_higher:
            self.training.stop(now_ns)
        if isinstance(event, NonceFound) or is_higher:
            self.mining.stop(now_ns)
        if isinstance(event, MessageArrived):
            sender, height = event.message.sender, event.message.height
            self._heard[sender] = max(height, self._heard.get(sender, (0, 0))[0]), now_ns
        last = self.moment
        block, came_ns, round_s, num_commits = last.block, last.came_ns, last.round_s, last.num_commits
        num_failures = last.num_failures
        if isinstance(event, TrainingFinished):
            num_failures = 0 if event.model is not None else num_failures + 1
        for effect in done.effects:
            match effect:
                case Commit():
                    round_s = None if came_ns is None else (now_ns - came_ns) / 1e9
                    block, came_ns, num_commits = effect.block, now_ns, num_commits + 1
                case Train():
                    self.training.start(now_ns)
                case Mine():
                    self.mining.start(now_ns)
                case StopMining():
                    self.mining.stop(now_ns)
                case _:
                    pass
        self.moment = Moment(after, block, came_ns, round_s, num_commits, num_failures)
        self.has_begun = True

    def silences(self, members: Collection[int], now_ns: int, since_ns: int) -> dict[int, float]:
        """Return seconds since each member's last message, or since `since_ns` if there was none."""
        return {one: max(0, now_ns - self._heard.get(one, (0, since_ns))[1]) / 1e9 for one in members}

    def claimed_height(self, members: Collection[int], num_faulty: int) -> int:
        """Return the height claimed by more than `num_faulty` of these members: at least one claim is true.

        A member that mentions a height has all blocks below it.
        """
        claims = sorted((self._heard[one][0] - 1 for one in members if one in self._heard), reverse=True)
        return max(0, claims[num_faulty]) if num_faulty < len(claims) else 0

    def committed(self, block: Block, certificate: Certificate, chain: ChainState) -> None:
        before_ns, self._kept_ns = self._kept_ns, time.monotonic_ns()
        round_s = None if before_ns is None else (self._kept_ns - before_ns) / 1e9
        header = block.header
        self._log.info(
            "block",
            {
                "height": header.height,
                "proposer": header.proposer,
                "attempt": header.attempt,
                "updates": len(block.body.updates),
                "votes": len(certificate),
                "seconds": None if round_s is None else round(round_s, 3),
                "digest": block.digest.hex()[:16],
            },
        )
        if round_s is not None:
            self._on_round(round_s)
        self._on_block(block, chain)

    def refused(self, sender: int | None, reason: str) -> None:
        kind = _NUMBERS.sub("_", reason)[:80]
        with self._lock:
            if kind not in self._reasons and len(self._reasons) >= _MAX_REASONS:
                kind = "other"
            found = self._reasons.setdefault(kind, _Reason())
            found.count += 1
            now_s = time.monotonic()
            if now_s - found.said_s < _SAY_AGAIN_S:
                return
            times, found.said_s, found.said_count = found.count - found.said_count, now_s, found.count
        self._log.warn("dropped", {"reason": reason, "sender": sender, "times": times})
