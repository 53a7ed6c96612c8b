"""What is noticed of a running node: its blocks, what it is at, and what it dropped."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bdfl.ledger.block import Block, Certificate
from bdfl.ledger.chain import ChainState
from bdfl.operation.logs import NodeLog
from bdfl.operation.snapshot import LastBlock
from bdfl.protocol.events import Effect, Event, Mine, NonceFound, StopMining, Train, TrainingFinished
from bdfl.protocol.state import NodeState
from bdfl.transports.live.observer import LiveObserver

_MAX_REASONS = 64  # that are counted apart
_SAY_AGAIN_S = 60.0
_NUMBERS = re.compile(r"\b[0-9a-f]{8,}\b|\d+")


@dataclass
class _Reason:
    """Something that is dropped again and again, and is not worth a line each time."""

    count: int = 0
    said_count: int = 0
    said_s: float = -_SAY_AGAIN_S


class Stopwatch:
    """Seconds in which something was under way."""

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
        since_ns = self._since_ns  # another thread may stop it meanwhile
        return (self._total_ns + (0 if since_ns is None else max(0, now_ns - since_ns))) / 1e9


class NodeWatch(LiveObserver):
    """Notices what people want to know of a node. Read from any thread."""

    def __init__(
        self,
        log: NodeLog,
        *,
        on_round: Callable[[float], None] | None = None,
        on_block: Callable[[Block, ChainState], None] | None = None,
    ) -> None:
        """`on_round` hears how long (s) it took from one block to the next, `on_block` of every block and its chain."""
        self._log = log
        self._on_round = on_round
        self._on_block = on_block
        self._lock = threading.Lock()
        self._last: tuple[Block, int | None, float | None] | None = None  # when it came (ns), how long it took (s)
        self._reasons: dict[str, _Reason] = {}
        self.training = Stopwatch()
        self.mining = Stopwatch()

    def recall(self, block: Block) -> None:
        """Takes in the newest block of an earlier life."""
        with self._lock:
            self._last = block, None, None

    def stepped(
        self, now_ns: int, before: NodeState, event: Event, after: NodeState, effects: tuple[Effect, ...]
    ) -> None:
        if isinstance(event, TrainingFinished) or after.chain.height != before.chain.height:
            self.training.stop(now_ns)
        if isinstance(event, NonceFound) or after.chain.height != before.chain.height:
            self.mining.stop(now_ns)
        for effect in effects:
            match effect:
                case Train():
                    self.training.start(now_ns)
                case Mine():
                    self.mining.start(now_ns)
                case StopMining():
                    self.mining.stop(now_ns)
                case _:
                    pass

    def committed(self, block: Block, certificate: Certificate, chain: ChainState) -> None:
        now_ns = time.monotonic_ns()
        with self._lock:
            before_ns = None if self._last is None else self._last[1]
            round_s = None if before_ns is None else (now_ns - before_ns) / 1e9
            self._last = block, now_ns, round_s
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
        if round_s is not None and self._on_round is not None:
            self._on_round(round_s)
        if self._on_block is not None:
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

    @property
    def last_block(self) -> LastBlock | None:
        with self._lock:
            if self._last is None:
                return None
            block, came_ns, round_s = self._last
        return LastBlock(
            height=block.header.height,
            digest=block.digest.hex(),
            proposer=block.header.proposer,
            attempt=block.header.attempt,
            age_s=None if came_ns is None else (time.monotonic_ns() - came_ns) / 1e9,
            round_s=round_s,
            is_empty=block.body.is_empty,
            num_updates=len(block.body.updates),
        )
