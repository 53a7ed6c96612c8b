"""Byzantine proposers: a member that proposes another block than the honest one it mined.

Every false block is mined and signed again, so that it is wrong only in the respect that its function names.
"""

from collections.abc import Callable
from itertools import count

import msgspec

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import (
    NONCE_SIZE,
    Block,
    Body,
    Entry,
    Header,
    Kind,
    Seal,
    SignedUpdate,
    TwoVotes,
    Vote,
    body_root,
    header_seal,
)
from bdfl.ledger.chain import prospect_after, settle_round
from bdfl.ledger.errors import MissingBlob
from bdfl.ledger.proof_of_work import is_worked, search_nonce
from bdfl.ledger.rules import make_body
from bdfl.ledger.schedule import assess
from bdfl.protocol.events import Effect, MessageArrived
from bdfl.protocol.messages import BlockWanted, Content, Gossip, Proposal
from bdfl.protocol.state import NodeState
from bdfl.transports.byzantine import Moment, OtherContent

ChangeBlock = Callable[[Moment, Block], Block | None]  # none: this one stays unchanged


class FalseBlocks(OtherContent):
    """Proposes a changed block instead of its own to some receivers, or to all, and votes for it there."""

    def __init__(self, change: ChangeBlock, receivers: frozenset[int] | None = None) -> None:
        super().__init__(receivers)
        self._change = change
        self._false: dict[bytes, Block | None] = {}  # by the digest of the honest block

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        changed = super().change(moment, effects)
        event = moment.event
        if isinstance(event, MessageArrived) and isinstance(event.message.content, BlockWanted):
            for block in self._false.values():
                if block is not None and block.digest == event.message.content.block:
                    return (*changed, moment.say(event.message.sender, Proposal(block), event.message.height))
        return changed

    def falsify(self, moment: Moment, content: Content, height: int) -> Content:
        """The content with the false block in place of its own one."""
        if isinstance(content, Proposal):
            block = content.block
            if block.header.proposer != moment.number or block.header.height != height:
                return content
            name = block.digest
            if name not in self._false:
                self._false[name] = self._change(moment, block)
            false = self._false[name]
            return content if false is None else Proposal(false)
        if not isinstance(content, Gossip):
            return content
        names = {name: block.digest for name, block in self._false.items() if block is not None}
        place = moment.place(height)
        is_named = any(name in names for name in content.blocks)
        mine = [vote for vote in content.votes if vote.vote.voter == moment.number and vote.vote.block in names]
        if place is None or not (is_named or mine):
            return content
        votes = tuple(
            moment.sign_vote(msgspec.structs.replace(signed.vote, block=names[signed.vote.block]), place)
            if signed in mine
            else signed
            for signed in content.votes
        )
        blocks = tuple(names.get(name, name) for name in content.blocks)
        return msgspec.structs.replace(content, votes=votes, blocks=blocks)


def seal_block(moment: Moment, header: Header, body: Body, first_nonce: int = 0) -> Block | None:
    """A block with this body, mined and signed by the Byzantine member; none if there is no nonce."""
    header = msgspec.structs.replace(header, body=body_root(body))
    work = moment.after.chain.genesis.law.work
    nonce = search_nonce(work, header_seal(header), header.difficulty, first=first_nonce)
    return None if nonce is None else sign_block(moment, header, nonce, body)


def sign_block(moment: Moment, header: Header, nonce: bytes, body: Body) -> Block:
    signature = moment.signer.sign(Meaning.BLOCK, header.place, Seal(header, nonce))
    return Block(header, nonce, signature, body)


def twin_block(moment: Moment, block: Block) -> Block | None:
    """The same block with another nonce, as valid as the first."""
    return seal_block(moment, block.header, block.body, int.from_bytes(block.nonce, "big") + 1)


def block_with_false_work(moment: Moment, block: Block) -> Block | None:
    """The same block with the first nonce that is no proof of work."""
    header = block.header
    if header.difficulty == 1:
        return None  # every nonce is a proof of work
    work, seal = moment.after.chain.genesis.law.work, header_seal(header)
    nonces = (number.to_bytes(NONCE_SIZE, "big") for number in count())
    nonce = next(nonce for nonce in nonces if not is_worked(work, seal, nonce, header.difficulty))
    return sign_block(moment, header, nonce, block.body)


def block_with_wrong_model(moment: Moment, block: Block) -> Block | None:
    """A block whose global model differs from the aggregate in one bit."""
    model = moment.memory.blobs.get(block.body.model)
    wrong = block.body.model if model is None else model[:-4] + bytes([model[-4] ^ 1]) + model[-3:]
    return seal_block(moment, block.header, msgspec.structs.replace(block.body, model=moment.keep(wrong)))


def block_with_own_schedule(moment: Moment, block: Block) -> Block | None:
    """A block whose queues or next schedule favour the Byzantine member, in one of several ways."""
    body = _FALSE_PLANS[(block.header.height + moment.number) % len(_FALSE_PLANS)](moment, block)
    return None if body == block.body else seal_block(moment, block.header, body)


def _raise_queue(moment: Moment, block: Block) -> Body:
    """Overstate the member's own queue, so that it is selected sooner."""
    queue = [length + 10**9 * (member == moment.number) for member, length in enumerate(block.body.queue_nano)]
    return msgspec.structs.replace(block.body, queue_nano=tuple(queue))


def _misstate_objective(moment: Moment, block: Block) -> Body:
    schedule = block.body.next_schedule
    changed = msgspec.structs.replace(schedule, objective_nano=schedule.objective_nano - 10**9)
    return msgspec.structs.replace(block.body, next_schedule=changed if schedule.is_feasible else schedule)


def _overdraw(moment: Moment, block: Block) -> Body:
    """Let the member mine at twice its frequency, beyond its budget."""
    schedule = block.body.next_schedule
    doubled = [hz * (1 + (member == moment.number)) for member, hz in enumerate(schedule.mining_hz)]
    changed = msgspec.structs.replace(schedule, mining_hz=tuple(doubled))
    return msgspec.structs.replace(block.body, next_schedule=changed)


def _slow_others_down(moment: Moment, block: Block) -> Body:
    """Let all others mine at half their frequency: valid, and only a voter's own schedule reveals it."""
    schedule, body = block.body.next_schedule, block.body
    if not schedule.is_feasible:
        return body
    slower = [hz if member == moment.number else hz // 2 for member, hz in enumerate(schedule.mining_hz)]
    changed = msgspec.structs.replace(schedule, mining_hz=tuple(slower))
    chain = _state_before(moment, block).chain
    prospect = prospect_after(chain, settle_round(chain, body.updates, body.reports, body.entries))
    objective_nano = assess(chain.coming_params, prospect, changed, moment.context.cache).objective_nano
    changed = msgspec.structs.replace(changed, objective_nano=objective_nano)
    return msgspec.structs.replace(body, next_schedule=changed)


_FALSE_PLANS: tuple[Callable[[Moment, Block], Body], ...] = (
    _raise_queue,
    _misstate_objective,
    _overdraw,
    _slow_others_down,
)


def block_with_stale_updates(moment: Moment, block: Block) -> Block | None:
    """A block that aggregates the members' updates of the round before."""
    if not moment.memory.blocks:
        return None
    stale = {signed.update.client: signed for signed in moment.memory.blocks[-1].body.updates}
    updates = tuple(stale.get(signed.update.client, signed) for signed in block.body.updates)
    if updates == block.body.updates:
        return None
    return rebuild_block(moment, block, updates, block.body.entries)


def block_without_others(moment: Moment, block: Block) -> Block | None:
    """A block with only the member's own update, or if it has none with only one other."""
    kept = tuple(signed for signed in block.body.updates if signed.update.client == moment.number)
    others = [signed for signed in block.body.updates if signed.update.client != moment.number]
    updates = kept or tuple(others[:1])
    return None if updates == block.body.updates else rebuild_block(moment, block, updates, block.body.entries)


def block_with_false_accusation(moment: Moment, block: Block) -> Block | None:
    """A block that accuses another member of equivocation with forged votes; at even heights only."""
    if block.header.height % 2:
        return None
    victim = (moment.number + 1) % moment.num_members
    place = block.header.place
    votes = [Vote(Kind.PREVOTE, 1, digest(bytes([number])), victim, (), (), 0) for number in range(2)]
    first, second = (moment.sign_vote(vote, place) for vote in votes)
    return rebuild_block(moment, block, block.body.updates, (*block.body.entries, TwoVotes(place, first, second)))


def rebuild_block(
    moment: Moment, block: Block, updates: tuple[SignedUpdate, ...], entries: tuple[Entry, ...]
) -> Block | None:
    """The block with these updates and entries in place of its own; none if a needed blob is missing."""
    before = _state_before(moment, block)
    try:
        body, _ = make_body(
            before.chain,
            certificate=block.body.parent_certificate,
            updates=updates,
            reports=block.body.reports,
            entries=entries,
            blobs=moment.memory.blobs | ({before.chain.model: before.model} if before.model else {}),
            cache=moment.context.cache,
        )
    except MissingBlob:
        return None
    return seal_block(moment, block.header, body)


def _state_before(moment: Moment, block: Block) -> NodeState:
    """The node while it works on the block's height."""
    return moment.before if moment.before.chain.height + 1 == block.header.height else moment.after
