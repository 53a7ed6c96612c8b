"""Event history: votes, updates and blocks of all members, merged from the recorded events of all nodes.

Times are on the monotonic clock, shared by all processes of the machine. All members are honest here, so equivocation
or a forgotten statement is a bug.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from bdfl.ledger.block import Block, Kind, SignedUpdate, SignedVote
from bdfl.localnet.processes import node_folder
from bdfl.protocol.events import MessageArrived
from bdfl.protocol.messages import Decided, Gossip, Message, Proposal
from bdfl.transports.live.event_log import EVENTS_FILE, LoggedStep, LogHeader, former_log, read_entries

VoteKey: TypeAlias = tuple[int, int, Kind, int]  # height, voter, kind, attempt


@dataclass(frozen=True)
class Incarnation:
    """A node from one start to the next, with the state it found in its store."""

    began_s: float
    ended_s: float  # time of its last recorded event
    height: int
    votes: frozenset[bytes]  # signatures of its own votes at the next height


@dataclass(frozen=True)
class Said:
    """A lower bound on a member's height, from one of its messages."""

    heard_s: float
    height: int


@dataclass
class Testimony:
    """All statements of all members, with the time they were first received."""

    incarnations: dict[int, list[Incarnation]] = field(default_factory=dict)  # by node
    votes: dict[VoteKey, dict[bytes, tuple[float, bytes]]] = field(default_factory=dict)  # by block: time, signature
    updates: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)  # height, client: signatures
    blocks: dict[tuple[int, int, int], set[bytes]] = field(default_factory=dict)  # height, proposer, attempt: digests
    said: dict[int, list[Said]] = field(default_factory=dict)  # by sender: increasing heights, with first times

    def heard_s(self, height: int, vote: SignedVote) -> float | None:
        """Return when a vote was first received; None: never recorded."""
        key = (height, vote.vote.voter, vote.vote.kind, vote.vote.attempt)
        found = self.votes.get(key, {}).get(vote.vote.block)
        return None if found is None else found[0]


def read_testimony(folder: Path, numbers: Sequence[int]) -> Testimony:
    """Read the recorded events of all nodes of a network."""
    testimony = Testimony()
    for number in numbers:
        incarnations = testimony.incarnations[number] = []
        began: LogHeader | None = None
        for entry in _read_log(node_folder(folder, number) / EVENTS_FILE):
            if isinstance(entry, LogHeader):
                began = entry
                continue
            now_s = entry.now_ns / 1e9
            if began is not None:
                kept = frozenset(vote.signature for vote in began.votes)
                incarnations.append(Incarnation(now_s, now_s, began.height, kept))
                _take_votes(testimony, now_s, began.height + 1, began.votes)
                began = None
            elif incarnations:
                incarnations[-1] = replace(incarnations[-1], ended_s=now_s)
            if isinstance(entry.event, MessageArrived):
                _take_message(testimony, now_s, entry.event.message)
    for sender, heard in testimony.said.items():
        testimony.said[sender] = _rising(heard)
    return testimony


def find_contradictions(testimony: Testimony) -> list[str]:
    """List equivocations: conflicting statements of one member."""
    found = [
        f"member {voter} cast {len(blocks)} different {kind.value}s in attempt {attempt} at height {height}"
        for (height, voter, kind, attempt), blocks in testimony.votes.items()
        if len(blocks) > 1
    ]
    found += [
        f"member {client} signed {len(signatures)} different updates of round {height}"
        for (height, client), signatures in testimony.updates.items()
        if len(signatures) > 1
    ]
    found += [
        f"member {proposer} signed {len(digests)} different blocks in attempt {attempt} at height {height}"
        for (height, proposer, attempt), digests in testimony.blocks.items()
        if len(digests) > 1
    ]
    return found


def find_forgotten(testimony: Testimony) -> list[str]:
    """List statements that members had sent before a restart and did not find in their store."""
    found = []
    for number, incarnations in testimony.incarnations.items():
        own = [
            (height, kind, heard_s, signature)
            for (height, voter, kind, _), blocks in testimony.votes.items()
            if voter == number
            for heard_s, signature in blocks.values()
        ]
        for began in incarnations[1:]:
            for said in testimony.said.get(number, ()):
                if said.heard_s < began.began_s and said.height > began.height:
                    found.append(f"node {number} had shown block {said.height} and began with {began.height}")
            for height, kind, heard_s, signature in own:
                if heard_s < began.began_s and height > began.height and signature not in began.votes:
                    found.append(f"node {number} began with block {began.height} and without its {kind.value} after it")
    return found


def _read_log(path: Path) -> Iterator[LogHeader | LoggedStep]:
    for log in (former_log(path), path):
        if log.exists():
            yield from read_entries(log)


def _take_message(testimony: Testimony, now_s: float, message: Message) -> None:
    content, height = message.content, message.height
    if isinstance(content, Gossip):
        _take_votes(testimony, now_s, height, content.votes)
        _take_updates(testimony, height, content.updates)
        _take_height(testimony, now_s, message.sender, height - 1)  # it has all blocks below the height
    elif isinstance(content, Proposal):
        _take_block(testimony, content.block)
    elif isinstance(content, Decided):
        _take_block(testimony, content.block)
        _take_votes(testimony, now_s, height, content.certificate)
        _take_height(testimony, now_s, message.sender, height)


def _take_votes(testimony: Testimony, now_s: float, height: int, votes: Sequence[SignedVote]) -> None:
    for signed in votes:
        vote = signed.vote
        known = testimony.votes.setdefault((height, vote.voter, vote.kind, vote.attempt), {})
        before = known.get(vote.block)
        if before is None or now_s < before[0]:
            known[vote.block] = now_s, signed.signature


def _take_updates(testimony: Testimony, height: int, updates: Sequence[SignedUpdate]) -> None:
    for signed in updates:
        testimony.updates.setdefault((height, signed.update.client), set()).add(signed.signature)


def _take_block(testimony: Testimony, block: Block) -> None:
    header = block.header
    testimony.blocks.setdefault((header.height, header.proposer, header.attempt), set()).add(block.digest)
    _take_updates(testimony, header.height, block.body.updates)


def _take_height(testimony: Testimony, now_s: float, sender: int, height: int) -> None:
    heard = testimony.said.setdefault(sender, [])
    if not heard or height != heard[-1].height:
        heard.append(Said(now_s, height))


def _rising(heard: list[Said]) -> list[Said]:
    """Keep only the first time of each new maximum."""
    rising: list[Said] = []
    for said in sorted(heard, key=lambda one: (one.heard_s, one.height)):
        if not rising or said.height > rising[-1].height:
            rising.append(said)
    return rising
