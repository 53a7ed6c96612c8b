"""The mutable working state of a node during one step, with the effects so far."""

from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import fields
from typing import TypeVar

from bdfl.errors import BdflError
from bdfl.identity import Meaning
from bdfl.ledger.block import (
    Certificate,
    Evidence,
    Kind,
    MembershipChange,
    SignedReport,
    SignedUpdate,
    SignedVote,
    TwoUpdates,
    Vote,
)
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState
from bdfl.ledger.errors import InvalidBlock
from bdfl.protocol.events import Effect, KeptProgress, Refused, Send, SetTimer, Store, Timer
from bdfl.protocol.messages import Content, Message
from bdfl.protocol.state import (
    MOVES,
    Candidate,
    Context,
    Decision,
    Followed,
    Lock,
    Mined,
    NodeState,
    Phase,
    VoteKey,
    make_state,
)
from bdfl.protocol.votes import AppendMap, VoteSet, by_voter

_FIELDS = tuple(field.name for field in fields(NodeState))
_Statement = TypeVar("_Statement")


class IllegalMove(RuntimeError):
    """A phase transition that is not in `MOVES`: a bug, whatever the input."""


class Draft:
    """A mutable `NodeState` with the same fields; maps are copies."""

    chain: ChainState
    precommits: MutableMapping[int, SignedVote]
    since_ms: int
    since_ns: int
    clock_offsets_ms: dict[int, int]
    phase: Phase
    attempt: int
    is_deadline_over: bool
    is_back_off_over: bool
    attempt_end_ns: int | None
    leader_until_ns: int | None
    lock: Lock | None
    updates: dict[int, SignedUpdate]
    reports: MutableMapping[int, SignedReport]
    blobs: dict[bytes, bytes]
    model: bytes
    in_time_updates: frozenset[int]
    in_time_reports: Collection[int]
    announced: frozenset[int]
    heard_ns: MutableMapping[int, int]
    waiting_since_ns: int | None
    review_ns: int
    absent_until: Mapping[int, int]
    patience_ns: Mapping[int, int]
    candidates: dict[bytes, Candidate]
    refused: frozenset[bytes]
    banned: frozenset[int]
    votes: MutableMapping[VoteKey, SignedVote]
    own_votes: dict[tuple[int, Kind], SignedVote]
    evidence: dict[int, Evidence]
    changes: tuple[MembershipChange, ...]
    held_since: dict[int | MembershipChange, int]
    mined: Mined | None
    decision: Decision | None
    ahead: tuple[Followed, ...]
    asked: frozenset[int]
    lacks_model: bool
    wanted_blobs: dict[bytes, int]
    asked_blobs: dict[int, tuple[bytes, ...]]
    asked_holders: Mapping[bytes, frozenset[int]]
    wanted_blocks: frozenset[bytes]
    early: tuple[Message, ...]
    turn: int
    num_resends: int
    resend_at_ns: int
    greeting_from_ns: int
    mining_since_ns: int
    mining_ms: int
    end: str

    def __init__(self, context: Context, state: NodeState, now_ns: int, utc_ms: int) -> None:
        vars(self).update(vars(state))  # all at once: this runs for every message received
        self.context = context
        self.now_ns = now_ns
        self.utc_ms = utc_ms
        self.effects: list[Effect] = []
        self.inbox: list[Message] = []  # buffered messages that are due now
        self.precommits = self._copy(state.precommits)
        self.updates = dict(state.updates)
        self.reports = self._copy(state.reports)
        self.blobs = dict(state.blobs)
        self.candidates = dict(state.candidates)
        self.votes = VoteSet.copy_of(state.votes, may_share=context.is_alone)
        self.own_votes = dict(state.own_votes)
        self.evidence = dict(state.evidence)
        self.held_since = dict(state.held_since)
        self.heard_ns = self._copy(state.heard_ns)
        self.wanted_blobs = dict(state.wanted_blobs)
        self.asked_blobs = dict(state.asked_blobs)
        self.clock_offsets_ms = dict(state.clock_offsets_ms)

    def finish(self) -> tuple[NodeState, tuple[Effect, ...]]:
        """The state after the event, and the effects to carry out, in order."""
        found = vars(self)
        return make_state({name: found[name] for name in _FIELDS}), tuple(self.effects)

    def _copy(self, held: Mapping[int, _Statement]) -> AppendMap[int, _Statement]:
        return AppendMap.copy_of(held, may_share=self.context.is_alone)

    @property
    def cache(self) -> VerificationCache:
        return self.context.cache

    def approve(
        self, rule: Callable[[ChainState, _Statement, VerificationCache], object], statement: _Statement
    ) -> None:
        """Raise as the rule does; a statement it accepts on this chain is not checked again in this process."""
        self.cache.once(rule, self.chain, statement)

    def accepts(
        self,
        sender: int | None,
        rule: Callable[[ChainState, _Statement, VerificationCache], object],
        statement: _Statement,
    ) -> bool:
        """Return whether the rule accepts a member's statement, as `approve`; else refuse it."""
        try:
            self.approve(rule, statement)
        except InvalidBlock as error:
            self.refuse(sender, error)
            return False
        return True

    @property
    def number(self) -> int:
        return self.context.number

    @property
    def height(self) -> int:
        """The height worked on."""
        return self.chain.height + 1

    @property
    def is_last(self) -> bool:
        """True if no round comes after this one."""
        return self.context.last_height is not None and self.height >= self.context.last_height

    @property
    def is_leaving(self) -> bool:
        """True if this height is the last at which this node is a member."""
        return self.chain.last_height(self.number) == self.height

    @property
    def is_member(self) -> bool:
        """True if this node participates at the height worked on; else it follows, and signs nothing."""
        number, members = self.number, self.chain.params.members
        is_admitted = number in self.chain.active and members[number].public_key == self.context.signer.public_key
        return is_admitted and not self.lacks_model

    @property
    def due(self) -> frozenset[int]:
        """Members that owe a statement at this height: an update, or a report for the round after."""
        return self.chain.scheduled if self.is_last else self.chain.due

    @property
    def may_be_idle(self) -> bool:
        """True if an idle block is due: the back-off is over here, or for the nodes that led to a later attempt."""
        return self.is_back_off_over or self.attempt > 1

    def start_height(self, certificate: Certificate) -> None:
        """Reset the fields of the previous height; messages buffered for this one are due now."""
        self.precommits = self._copy(by_voter(certificate))
        self.since_ms = self.utc_ms
        self.attempt = 1
        self.is_deadline_over = self.is_back_off_over = False
        self.attempt_end_ns = self.leader_until_ns = None
        self.lock = None
        self.updates, self.reports, self.blobs = {}, self._copy({}), {}
        self.in_time_updates, self.in_time_reports = frozenset(), ()
        self.announced, self.heard_ns = frozenset(), self._copy({})
        self.waiting_since_ns, self.review_ns = None, 0
        self.candidates = {}
        self.votes, self.own_votes = VoteSet({}, may_share=self.context.is_alone), {}
        self.refused, self.banned = frozenset(), frozenset()
        self.mined, self.decision = None, None
        self.ahead = self.ahead[1:]
        self.wanted_blobs, self.wanted_blocks = {}, frozenset()
        self.asked_blobs, self.asked_holders = {}, {}
        self.inbox.extend(self.early)
        self.early = ()
        self.turn = self.num_resends = 0
        self.mining_since_ns = self.mining_ms = 0

    @property
    def two_faced(self) -> dict[int, TwoUpdates]:
        """Members that equivocated about their update of this height, with the evidence."""
        place = self.chain.place
        return {
            member: found
            for member, found in self.evidence.items()
            if isinstance(found, TwoUpdates) and found.place == place
        }

    @property
    def extent(self) -> tuple[int, ...]:
        """Counts of what is held: while they are unchanged, `progress` has nothing new to decide."""
        return (
            self.chain.height,
            len(self.updates),
            len(self.reports),
            len(self.votes),
            len(self.candidates),
            len(self.blobs),
            len(self.refused),
            self.decision is not None,
        )

    @property
    def holdings(self) -> tuple[int, ...]:
        """Counts of all that a re-broadcast may tell of or ask for."""
        return *self.extent, len(self.evidence), len(self.changes), len(self.ahead)

    def move(self, phase: Phase) -> None:
        if phase not in MOVES[self.phase]:
            raise IllegalMove(f"from {self.phase} to {phase}; allowed: {', '.join(MOVES[self.phase]) or 'none'}")
        self.phase = phase

    def do(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, to: int | None, content: Content, height: int | None = None) -> None:
        """Send a message about the height worked on, or another one; to all if `to` is none."""
        self.do(Send(to, Message(self.chain.chain, self.number, height or self.height, content)))

    def refuse(self, sender: int | None, error: BdflError | str) -> None:
        self.do(Refused(sender, str(error)))

    def set_timer(self, timer: Timer, delay_ns: int) -> None:
        self.do(SetTimer(timer, self.height, self.attempt, delay_ns))

    def keep_progress(self) -> None:
        lock = () if self.lock is None else self.lock.prevotes
        self.do(Store(KeptProgress(self.height, self.attempt, lock)))

    def own_vote(self, kind: Kind) -> SignedVote | None:
        """This node's vote in the current attempt; none if not cast."""
        return self.own_votes.get((self.attempt, kind))

    def is_held(self, update: SignedUpdate) -> bool:
        """Return whether an update is complete: its blob is held, or none is needed."""
        model = update.update.model
        return update.update.is_declined or update.update.samples == 0 or model in self.blobs

    @property
    def needed_blobs(self) -> Mapping[bytes, bytes]:
        """Bytes that the next model is made of: of held updates, and of the parent's model for a server's optimizer."""
        return {**self.blobs, self.chain.model: self.model} if self.model else self.blobs

    def note_reports(self) -> None:
        """Record the reports held now as held in time."""
        self.in_time_reports = self._copy(self.reports)

    @property
    def held_updates(self) -> dict[int, SignedUpdate]:
        """Complete updates, by client."""
        return {client: update for client, update in sorted(self.updates.items()) if self.is_held(update)}

    def sign_vote(self, kind: Kind, block: bytes) -> SignedVote:
        vote = Vote(
            kind,
            self.attempt,
            block,
            self.number,
            tuple(self.held_updates),
            tuple(sorted(self.reports)),
            self.mining_ms if kind is Kind.PRECOMMIT else 0,
        )
        return SignedVote(vote, self.context.signer.sign(Meaning.VOTE, self.chain.place, vote))

    def lowest_hash_first(self, candidates: list[Candidate]) -> list[Candidate]:
        """Sort by proof-of-work hash, then digest, so that nodes that hold the same blocks agree."""
        law = self.chain.genesis.law

        def key(candidate: Candidate) -> tuple[bytes, bytes]:
            return self.cache.work_hash(law.work, candidate.block.header, candidate.block.nonce), candidate.digest

        return sorted(candidates, key=key)
