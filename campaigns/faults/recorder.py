"""Passive observer that records everything the laws need."""

from dataclasses import dataclass, field

from bdfl.ledger.block import Block, Certificate, Kind, MembershipChange, SignedVote
from bdfl.ledger.chain import ChainState
from bdfl.ledger.store import Store
from bdfl.protocol.events import Commit, Effect, KeptBlob, KeptProgress, Send, Store as Keep
from bdfl.protocol.messages import Gossip, Message, Proposal
from bdfl.protocol.state import NodeState, Phase
from bdfl.transports.interfaces import Observer, Transition


@dataclass(frozen=True)
class SentVote:
    """A node's own vote, when first sent."""

    now_ns: int
    height: int
    signed: SignedVote


@dataclass(frozen=True)
class Committed:
    """A block committed by a node."""

    now_ns: int
    block: Block
    certificate: Certificate
    is_trusted: bool = False  # its model was not recomputed
    highest: int = 0  # greatest height committed by any node at that time

    @property
    def height(self) -> int:
        return self.block.header.height


@dataclass(frozen=True)
class Restart:
    """State missing from a node's store at a restart."""

    now_ns: int
    node: int
    lost_votes: tuple[SentVote, ...]
    lost_blocks: tuple[Committed, ...]
    lost_progress: KeptProgress | None = None  # last stored progress, if the node started without it


@dataclass
class NodeRecord:
    """One node's actions, in order."""

    votes: list[SentVote] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    # Signatures of its own updates, reports and blocks sent, by kind, height and attempt: one each.
    signed: dict[tuple[str, int, int], set[bytes]] = field(default_factory=dict)
    accused: set[int] = field(default_factory=set)  # members against which it ever held evidence
    progress: KeptProgress | None = None  # last stored
    closings: dict[int, frozenset[int]] = field(default_factory=dict)  # by height: clients held at end of collecting
    num_refused: int = 0
    most_blobs: int = 0  # largest number held
    most_candidates: dict[int, int] = field(default_factory=dict)  # largest number held, by its attempt at that time
    most_early: int = 0  # largest number of messages of the next height held
    entries: dict[int | MembershipChange, int] = field(default_factory=dict)  # held: since which of its heights
    chain: ChainState | None = None  # its newest
    blobs: dict[bytes, bytes] = field(default_factory=dict)  # ever kept, including pruned ones


class Recorder(Observer):
    """Records votes, commits, timely updates, and state lost at restarts."""

    def __init__(self, num_nodes: int) -> None:
        self.nodes = tuple(NodeRecord() for _ in range(num_nodes))
        self.restarts: list[Restart] = []
        self.num_crashes = 0
        self.highest = 0
        # By first-attempt block and prevoter: clients with updates that the voter held in time.
        self.held: dict[tuple[int, bytes], dict[int, frozenset[int]]] = {}
        self._sent: set[tuple[int, bytes]] = set()

    def stepped(self, now_ns: int, number: int, done: Transition) -> None:
        before, after = done.before, done.after
        self._note_memory(self.nodes[number], after)
        self.nodes[number].accused.update(after.evidence)
        self._note_entries(self.nodes[number], after)
        is_same_height = before.chain.height == after.chain.height
        if before.phase is Phase.COLLECTING and (after.phase is not Phase.COLLECTING or not is_same_height):
            held = held_updates(after if is_same_height else before)
            self.nodes[number].closings[before.chain.height + 1] = held

    def did(self, now_ns: int, number: int, effect: Effect) -> None:
        match effect:
            case Commit(block=block, certificate=certificate, is_trusted=is_trusted):
                found = Committed(now_ns, block, certificate, is_trusted, self.highest)
                self.nodes[number].commits.append(found)
                self.highest = max(self.highest, found.height)
            case Keep(kept=KeptBlob(digest=name, data=data)):
                self.nodes[number].blobs[name] = data
            case Keep(kept=KeptProgress() as progress):
                self.nodes[number].progress = progress
            case Send(message=message):
                self._note_said(now_ns, number, message)

    def crashed(self, now_ns: int, number: int) -> None:
        self.num_crashes += 1

    def restarted(self, now_ns: int, number: int, state: NodeState, store: Store) -> None:
        record, height = self.nodes[number], store.height
        kept = set(store.read_round(height + 1).votes)
        lost_blocks = tuple(
            found
            for found in record.commits
            if found.height > height or store.block(found.height).digest != found.block.digest
        )
        lost_votes = tuple(sent for sent in record.votes if sent.height > height and sent.signed not in kept)
        lost_progress = record.progress if _is_behind(state, record.progress) else None
        self.restarts.append(Restart(now_ns, number, lost_votes, lost_blocks, lost_progress))

    def _note_memory(self, record: NodeRecord, state: NodeState) -> None:
        record.most_blobs = max(record.most_blobs, len(state.blobs))
        record.most_early = max(record.most_early, len(state.early))
        most = record.most_candidates.get(state.attempt, 0)
        record.most_candidates[state.attempt] = max(most, len(state.candidates))

    def _note_said(self, now_ns: int, number: int, message: Message) -> None:
        """Record a node's own statements."""
        content, height, record = message.content, message.height, self.nodes[number]
        if isinstance(content, Proposal) and content.block.header.proposer == number:
            key = ("block", content.block.header.height, content.block.header.attempt)
            record.signed.setdefault(key, set()).add(content.block.signature)
        if not isinstance(content, Gossip):
            return
        for update in content.updates:
            if update.update.client == number:
                record.signed.setdefault(("update", height, 0), set()).add(update.signature)
        for report in content.reports:
            if report.report.client == number:
                record.signed.setdefault(("report", height, 0), set()).add(report.signature)
        for vote in content.votes:
            if vote.vote.voter == number:
                self._note_vote(now_ns, number, height, vote)

    def _note_entries(self, record: NodeRecord, state: NodeState) -> None:
        record.chain = state.chain
        if record.entries or state.evidence or state.changes:
            held, height = record.entries, state.chain.height + 1
            now_held: list[int | MembershipChange] = [*state.evidence, *state.changes]
            record.entries = {what: held.get(what, height) for what in now_held}

    def _note_vote(self, now_ns: int, number: int, height: int, signed: SignedVote) -> None:
        name = (number, signed.signature)
        if name in self._sent:
            return
        self._sent.add(name)
        record, vote = self.nodes[number], signed.vote
        record.votes.append(SentVote(now_ns, height, signed))
        if vote.kind is Kind.PREVOTE:
            voters = self.held.setdefault((height, vote.block), {})
            voters.setdefault(number, record.closings.get(height, frozenset()))


def _is_behind(state: NodeState, kept: KeptProgress | None) -> bool:
    """Return whether a restarted node is in an earlier attempt than it had stored, or without its lock."""
    if kept is None or kept.height != state.chain.height + 1:
        return False
    held = () if state.lock is None else state.lock.prevotes
    return state.attempt < kept.attempt or held != kept.lock


def held_updates(state: NodeState) -> frozenset[int]:
    """Return the clients with updates that a node holds completely."""
    return frozenset(
        client
        for client, signed in state.updates.items()
        if signed.update.is_declined or signed.update.samples == 0 or signed.update.model in state.blobs
    )
