"""A member that exhausts memory: valid blocks of many attempts, each with another update, all voted for.

It is scheduled and does the work, which halves with every attempt. Peers request each block because of its vote. It
also sends every member a different update, so that no two of them hold the same.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.learning.weights import decode_weights, encode_weights
from bdfl.ledger.block import Block, Kind, SignedUpdate, SignedVote, Vote
from bdfl.ledger.rules import make_body, make_header
from bdfl.protocol.events import Effect, MessageArrived, Send, Timer, TimerFired
from bdfl.protocol.messages import BlockWanted, Gossip, Proposal
from bdfl.protocol.state import Context
from bdfl.transports.byzantine import Memory, Moment, each_receiver
from bdfl.transports.byzantine_blocks import seal_block
from bdfl.transports.interfaces import Tamper, Transition


class Hoarder:
    """Adds the attack to another liar's behaviour, once per height, as soon as its own block is being mined."""

    def __init__(self, liar: Tamper, num_attempts: int = 5, num_each: int = 3) -> None:
        """`num_attempts` attempts, with `num_each` blocks for each kind of vote."""
        self._liar = liar
        self._num_attempts, self._num_each = num_attempts, num_each
        self._height = 0
        self._models: dict[bytes, bytes] = {}
        self._blocks: dict[bytes, Block] = {}
        self._votes: tuple[SignedVote, ...] = ()

    def effects(self, now_ns: int, context: Context, done: Transition) -> tuple[Effect, ...]:
        told = self._liar.effects(now_ns, context, done)
        moment = Moment(now_ns, context, done.before, done.event, done.after, Memory())
        split = (changed for effect in told for changed in self._split(moment, effect))
        return (*split, *self._hoard(moment), *self._answer(moment))

    def serve(self, blob: bytes, data: bytes | None) -> bytes | None:
        return self._models.get(blob) or self._liar.serve(blob, data)

    def _split(self, moment: Moment, effect: Effect) -> Iterator[Effect]:
        """Replace its own update by a different one for each receiver."""
        content = effect.message.content if isinstance(effect, Send) else None
        state, number = moment.after, moment.number
        if not isinstance(effect, Send) or not isinstance(content, Gossip):
            yield effect
            return
        own = state.updates.get(number)
        if own is None or own not in content.updates or own.update.model not in state.blobs:
            yield effect
            return
        for send in each_receiver(moment, effect):
            other = self._other_update(moment, own, send.to or 0)
            updates = tuple(other if signed == own else signed for signed in content.updates)
            yield moment.say(send.to, msgspec.structs.replace(content, updates=updates), effect.message.height)

    def _hoard(self, moment: Moment) -> Iterator[Send]:
        state, number = moment.after, moment.number
        height = state.chain.height + 1
        own = state.updates.get(number)
        if state.mined is not None and height != self._height and own is not None and own.update.model in state.blobs:
            self._height = height
            self._prepare(moment, own)
        is_again = isinstance(moment.event, TimerFired) and moment.event.timer is Timer.RESEND
        if height == self._height and (moment.before.chain.height + 1 != height or is_again or state.mined is not None):
            yield moment.say(None, Gossip(1, votes=self._votes))

    def _prepare(self, moment: Moment, own: SignedUpdate) -> None:
        self._blocks = {}
        votes, chain = [], moment.after.chain
        for index in range(self._num_attempts * self._num_each * len(Kind)):
            attempt = 1 + index // (self._num_each * len(Kind))
            block = self._make_block(moment, self._other_update(moment, own, 100 + index), attempt)
            if block is None:
                continue
            self._blocks[block.digest] = block
            kind = tuple(Kind)[index % len(Kind)]
            vote = Vote(kind, attempt, block.digest, moment.number, (), (), 0)
            votes.append(moment.sign_vote(vote, chain.place))
        self._votes = tuple(votes)

    def _other_update(self, moment: Moment, own: SignedUpdate, index: int) -> SignedUpdate:
        layout, place = moment.after.chain.layout, moment.after.chain.place
        weights = decode_weights(moment.after.blobs[own.update.model], layout)
        data = encode_weights(weights + np.float32(1 + index), layout)
        self._models[digest(data)] = data
        update = msgspec.structs.replace(own.update, model=digest(data))
        return SignedUpdate(update, moment.signer.sign(Meaning.UPDATE, place, update))

    def _make_block(self, moment: Moment, update: SignedUpdate, attempt: int) -> Block | None:
        state, number = moment.after, moment.number
        assert state.mined is not None
        mined = state.mined.body
        body, _ = make_body(
            state.chain,
            certificate=mined.parent_certificate,
            updates=tuple(update if one.update.client == number else one for one in mined.updates),
            reports=mined.reports,
            entries=mined.entries,
            blobs={state.chain.model: state.model, **state.blobs, **self._models},
            cache=moment.context.cache,
        )
        header = make_header(state.chain, attempt, number, body, state.mined.header.time_ms)
        return seal_block(moment, header, body)

    def _answer(self, moment: Moment) -> Iterator[Send]:
        if not isinstance(moment.event, MessageArrived):
            return
        sender, content = moment.event.message.sender, moment.event.message.content
        if isinstance(content, BlockWanted) and content.block in self._blocks:
            yield moment.say(sender, Proposal(self._blocks[content.block]), self._height)
