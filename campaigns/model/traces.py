"""Steps of agreement that networks of bdfl took, written down so that the model can be asked whether it may take them.

A line is one step: its name, the member, the height from 0, the attempt, the block as a number within its height, and
for what was heard twice the voter's number plus the kind, for a restart the attempt of the lock, for a prevote the
leader of the attempt.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bdfl.ledger.block import Kind, SignedVote
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState
from bdfl.ledger.errors import InvalidBlock
from bdfl.ledger.statements import validate_vote
from bdfl.ledger.store import Store as ChainKeeping
from bdfl.protocol.consensus import leader_of
from bdfl.protocol.events import (
    Commit,
    Effect,
    Event,
    KeptProgress,
    KeptStatement,
    MessageArrived,
    Send,
    Started,
    Store,
)
from bdfl.protocol.messages import Gossip
from bdfl.scenario.schema_learning import QuorumRule
from bdfl.transports.interfaces import Transition
from bdfl.transports.live.replay import replay
from campaigns.faults.plan import draw_plan
from campaigns.faults.recorder import Recorder
from campaigns.faults.trial import play


@dataclass(frozen=True)
class Step:
    """One step of one member; the block is named by its digest."""

    now_ns: int
    name: str
    member: int
    height: int
    attempt: int = 0
    block: bytes = b""
    more: int = 0


@dataclass(frozen=True)
class Trace:
    """The steps of a network, and who may say anything."""

    num_members: int
    free: frozenset[int]  # liars, and members of whom nothing is recorded
    steps: tuple[Step, ...]

    @property
    def num_attempts(self) -> int:
        """One more than any recorded member entered: what liars say of later ones counts for that one."""
        return 1 + max((step.attempt for step in self.steps if step.name not in ("hear", "rules")), default=1)

    @property
    def num_heights(self) -> int:
        return 1 + max((step.height for step in self.steps), default=0)

    def numbered_blocks(self) -> tuple[Mapping[tuple[int, bytes], int], int]:
        """Numbers of blocks within their heights, and the number of all others: those no recorded member acted on."""
        numbers: dict[tuple[int, bytes], int] = {}
        counts: dict[int, int] = {}
        for step in self.steps:
            key = step.height, step.block
            if step.block and step.name != "hear" and key not in numbers:
                numbers[key] = counts[step.height] = counts.get(step.height, -1) + 1
        return numbers, 1 + max(counts.values(), default=0)

    def render(self) -> str:
        """The steps as lines for the model."""
        numbers, others = self.numbered_blocks()
        last = self.num_attempts
        lines = [f"liar {member} 0 0 0 0" for member in sorted(self.free)]
        for step in self.steps:
            is_free = step.name == "hear" and step.more // 2 in self.free
            attempt = min(step.attempt, last) if is_free else step.attempt
            block = numbers.get((step.height, step.block), others) if step.block else 0
            if step.name == "rules":
                attempt, block = step.attempt, step.more
            elif attempt != step.attempt:
                block = others
            lines.append(f"{step.name} {step.member} {step.height} {attempt} {block} {step.more}")
        return "\n".join(lines) + "\n"


@dataclass
class _Known:
    """The record of a member so far."""

    attempt: int = 1
    lock: tuple[int, bytes] = (0, b"")
    is_pending: bool = False
    # Votes of heights that the node came to within the step, heard of one message after the other: each is written
    # down when something rests on it, the rest when the step is over.
    due: dict[int, list[SignedVote]] = field(default_factory=dict)


class TraceRecorder(Recorder):
    """Watches a network and writes down the steps of agreement of its honest members."""

    def __init__(self, num_nodes: int, watched: Iterable[int]) -> None:
        super().__init__(num_nodes)
        self.steps: list[Step] = []
        self._known = {number: _Known() for number in watched}
        self._followed: dict[int, int] = {}  # by height: how many lead others to a later attempt
        self._chains: dict[int, ChainState] = {}  # by height
        self._cache = VerificationCache()

    def stepped(self, now_ns: int, number: int, done: Transition) -> None:
        super().stepped(now_ns, number, done)
        before, event, after = done.before, done.event, done.after
        known = self._known.get(number)
        if known is None:
            return
        self._note_rules(now_ns, before.chain)
        self._note_rules(now_ns, after.chain)
        height = before.chain.height
        if isinstance(event, Started):
            known.attempt = before.attempt
            known.lock = (0, b"") if before.lock is None else (before.lock.attempt, before.lock.block)
            self._add(now_ns, "restart", number, height, before.attempt, known.lock[1], known.lock[0])
        self._hear(now_ns, number, height, known.due.pop(height, []))
        known.due = {}
        if after.chain.height == height:
            heard = [vote for key, vote in after.votes.items() if key not in before.votes]
        else:
            heard = [vote for vote in _said_in(event, height + 1) if self._is_valid(before.chain, vote)]
            known.due = {after.chain.height: list(after.votes.values())}
            for passed in range(height + 1, after.chain.height):
                messages = (event, *map(MessageArrived, before.early))
                said = (vote for message in messages for vote in _said_in(message, passed + 1))
                known.due[passed] = [vote for vote in said if self._is_sent(vote)]
        self._hear(now_ns, number, height, heard)

    def did(self, now_ns: int, number: int, effect: Effect) -> None:
        super().did(now_ns, number, effect)
        known = self._known.get(number)
        if known is None:
            return
        match effect:
            case Store(KeptProgress(height, attempt, lock)):
                if attempt != known.attempt:
                    due = known.due.get(height - 1, [])
                    led = {vote.vote.voter: vote for vote in due if vote.vote.attempt >= attempt}
                    self._hear(now_ns, number, height - 1, list(led.values())[: self._followed[height - 1]])
                    self._add(now_ns, "enter", number, height - 1, attempt)
                held = (lock[0].vote.attempt, lock[0].vote.block) if lock else (0, b"")
                if held != known.lock:
                    self._hear(now_ns, number, height - 1, lock)
                    self._add(now_ns, "lock", number, height - 1, *held)
                known.attempt, known.lock = attempt, held
            case Store(KeptStatement(height, SignedVote() as signed)):
                vote = signed.vote
                name = "prevote" if vote.kind is Kind.PREVOTE else "precommit"
                leader = leader_of(self._chains[height - 1], vote.attempt)
                self._add(now_ns, name, number, height - 1, vote.attempt, vote.block, leader)
                known.is_pending = True
            case Send(message=message) if known.is_pending and isinstance(message.content, Gossip):
                if any(signed.vote.voter == number for signed in message.content.votes):
                    self._add(now_ns, "say", number, message.height - 1)
                    known.is_pending = False
            case Commit(block=block, certificate=certificate):
                height = block.header.height - 1
                self._add(now_ns, "commit", number, height, certificate[0].vote.attempt, block.digest)
                known.attempt, known.lock, known.is_pending = 1, (0, b""), False

    def _hear(self, now_ns: int, number: int, height: int, votes: Iterable[SignedVote]) -> None:
        for signed in votes:
            vote = signed.vote
            if vote.voter != number:
                more = 2 * vote.voter + (vote.kind is Kind.PRECOMMIT)
                self._add(now_ns, "hear", number, height, vote.attempt, vote.block, more)

    def _note_rules(self, now_ns: int, chain: ChainState) -> None:
        """The quorum of the height worked on, and how many lead others to a later attempt."""
        if chain.height not in self._followed:
            is_crash_only = chain.genesis.law.quorum is QuorumRule.MAJORITY
            followed = 1 if is_crash_only else len(chain.active) - chain.quorum + 1
            self._followed[chain.height] = followed
            self._chains[chain.height] = chain
            self._add(now_ns, "rules", 0, chain.height, chain.quorum, b"", followed)

    def _is_valid(self, chain: ChainState, vote: SignedVote) -> bool:
        try:
            validate_vote(chain, vote, self._cache)
        except InvalidBlock:
            return False
        return True

    def _is_sent(self, vote: SignedVote) -> bool:
        """True for a vote that a watched member sent, or any of another member."""
        voter = vote.vote.voter
        return voter not in self._known or (voter, vote.signature) in self._sent

    def _add(
        self, now_ns: int, name: str, member: int, height: int, attempt: int = 0, block: bytes = b"", more: int = 0
    ) -> None:
        self.steps.append(Step(now_ns, name, member, height, attempt, block, more))


def _said_in(event: Event, height: int) -> Sequence[SignedVote]:
    if isinstance(event, MessageArrived) and event.message.height == height:
        content = event.message.content
        return content.votes if isinstance(content, Gossip) else ()
    return ()


def record_seed(seed: int) -> Trace:
    """The steps of a fault seed's network, the same that `python -m campaigns faults` plays."""
    plan = draw_plan(seed)
    recorder = TraceRecorder(plan.num_keys, plan.honest)
    play(plan, recorder, VerificationCache())
    free = frozenset(range(plan.num_keys)) - frozenset(plan.honest)
    return Trace(plan.num_keys, free, tuple(recorder.steps))


def record_logs(logs: Mapping[int, tuple[Path, ChainKeeping]], num_members: int) -> Trace:
    """The steps of live nodes, played again from their event logs and put in order by their common clock.

    Members without a log may have said anything. All logs must be of one machine and begin with the chain.
    """
    steps: list[Step] = []
    for number, (log, store) in sorted(logs.items()):
        recorder = TraceRecorder(num_members, [number])
        replay(log, store, observer=recorder)
        steps += recorder.steps
    rules = {step.height: step for step in steps if step.name == "rules"}
    acts = sorted((step for step in steps if step.name != "rules"), key=lambda step: step.now_ns)
    free = frozenset(range(num_members)) - frozenset(logs)
    return Trace(num_members, free, (*rules.values(), *acts))
