"""Selfish members: they break no rule, but profit at the expense of the others.

None of these attacks leaves evidence. A selfish member withholds or delays its own statements, reports false
conditions, or repeats old blocks. They are not behaviours of a scenario: they only test the protocol.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import MAX_BUDGET_PJ, Block, Body, Conditions, Header, Kind, SignedReport, SignedVote
from bdfl.ledger.rules import make_body, make_header
from bdfl.protocol.deadlines import deadline_ns, exchange_ns
from bdfl.protocol.events import Commit, Effect, Mine, NonceFound, Send, SetTimer, StopMining, Timer
from bdfl.protocol.messages import Gossip, Message, Proposal
from bdfl.transports.byzantine import Misbehaviour, Moment, each_receiver
from bdfl.transports.byzantine_blocks import FalseBlocks, rebuild_block, sign_block
from bdfl.transports.interfaces import Delivery, Parcel

MARGIN_NS = 20_000_000  # before a deadline
HOLD_NS = 3_000_000  # a hundredth of the mean time in which one of five or six members mines alone in the campaign
_FAR = Conditions(gain_atto=200, energy_budget_pj=MAX_BUDGET_PJ, is_reachable=True)  # affordable, uploads in 20 days


class Attack(StrEnum):
    """Attack of a selfish member."""

    WITHHOLD = "withhold"  # its report and update first appear inside its own block
    RELEASE = "release"  # they are sent right before its own block
    HOLD = "hold"  # its report is sent at the most profitable time: just after it was due
    FEIGN = "feign"  # it reports a hundredth of its gain, is as fast as ever, and mines until the exchange should end
    LATE_REPORT = "late-report"  # its report is sent just before the deadline, and it never mines
    LATE_UPDATE = "late-update"  # likewise for its update
    FLAP = "flap"  # it reports only for every second round
    MUTE = "mute"  # it reports, but never sends an update or mines
    FAR = "far"  # likewise, and it reports the worst channel that it can afford
    SLOW = "slow"  # it reports a hundredth of its gain, and acts accordingly
    OLD_BLOCKS = "old-blocks"  # it proposes the last decided block again, of any proposer
    CENSOR = "censor"  # its blocks have no entries
    CONFIDE = "confide"  # only so few hear its statements that the others' block would lack a vote; these mine first
    SPLIT = "split"  # likewise in every other round, in which nobody waits for it, and it prevotes as `STALL`
    STALL = "stall"  # in first attempts it prevotes for no block, and just before the attempt ends
    AFTER = "after"  # as `SPLIT`, and it mines a block of the second attempt meanwhile, without most others' reports


class Withhold:
    """Withholds its own report and update, and mines meanwhile."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._published = 0  # height
        self._timed = 0  # height

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        changed = tuple(changed for effect in effects for changed in self._change(moment, effect))
        state = moment.after
        height = state.chain.height + 1
        if self._attack not in (Attack.HOLD, Attack.FEIGN) or height == self._timed:
            return changed
        self._timed = height
        delay_ns = max(0, self._release_ns(moment) - moment.now_ns)
        return (*changed, SetTimer(Timer.RESEND, height, state.attempt, delay_ns))  # when everything is sent

    def _release_ns(self, moment: Moment) -> int:
        state, context = moment.after, moment.context
        expected_ns = state.since_ns + exchange_ns(state.chain, context.timing, context.cache)
        return expected_ns + (HOLD_NS if self._attack is Attack.HOLD else 0)

    def _is_kept_back(self, moment: Moment, height: int) -> bool:
        if height <= self._published:
            return False
        is_timed = self._attack in (Attack.HOLD, Attack.FEIGN) and height == moment.after.chain.height + 1
        return not is_timed or moment.now_ns < self._release_ns(moment)

    def _change(self, moment: Moment, effect: Effect) -> Iterator[Effect]:
        if not isinstance(effect, Send):
            yield effect
            return
        content, height = effect.message.content, effect.message.height
        if isinstance(content, Proposal) and content.block.header.proposer == moment.number:
            self._published = height
            if self._attack is not Attack.WITHHOLD:
                state, own = moment.after, moment.number
                updates = (state.updates[own],) if own in state.updates else ()
                reports = (state.reports[own],) if own in state.reports else ()
                yield moment.say(None, Gossip(state.attempt, updates=updates, reports=reports), height)
        elif isinstance(content, Gossip) and self._is_kept_back(moment, height):
            said = without_own(content, moment.number)
            if self._attack is Attack.HOLD:
                said = msgspec.structs.replace(said, updates=content.updates)
            yield Send(effect.to, msgspec.structs.replace(effect.message, content=said))
            return
        yield effect


def without_own(said: Gossip, member: int) -> Gossip:
    """Return the message without the member's own report and update."""
    return msgspec.structs.replace(
        said,
        updates=tuple(signed for signed in said.updates if signed.update.client != member),
        reports=tuple(signed for signed in said.reports if signed.report.client != member),
    )


class Late:
    """Sends its own report, or update, just before the deadline, and never mines."""

    def __init__(self, attack: Attack) -> None:
        self._is_update = attack is Attack.LATE_UPDATE
        self._release_ns: dict[int, int] = {}  # by height

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        state, context = moment.after, moment.context
        wait_ns = deadline_ns(state.chain, context.timing, context.cache) - MARGIN_NS
        self._release_ns.setdefault(state.chain.height + 1, state.since_ns + wait_ns)
        return tuple(effect for effect in effects if not isinstance(effect, Mine | StopMining))

    def delay_ns(self, now_ns: int, parcel: Parcel) -> int:
        """Return how long a message of this member is held back."""
        if not isinstance(parcel, Message) or not isinstance(parcel.content, Gossip):
            return 0
        message, said = parcel, parcel.content
        is_own = (
            any(signed.update.client == message.sender for signed in said.updates)
            if self._is_update
            else any(signed.report.client == message.sender for signed in said.reports)
        )
        return max(0, self._release_ns.get(message.height, now_ns) - now_ns) if is_own else 0


class LatePostman:
    """Network model that also delays the messages of late members."""

    def __init__(self, delivery: Delivery, late: Mapping[int, Late]) -> None:
        self._delivery = delivery
        self._late = late

    def deliveries(self, now_ns: int, sender: int, receiver: int, parcel: Parcel) -> Sequence[int]:
        found = self._delivery.deliveries(now_ns, sender, receiver, parcel)
        late = self._late.get(sender)
        return found if late is None else [extra_ns + late.delay_ns(now_ns, parcel) for extra_ns in found]


def delay_late(delivery: Delivery, lies: Mapping[int, Sequence[Misbehaviour]]) -> Delivery:
    """Wrap the network model if any member is late."""
    late = {member: lie for member, told in lies.items() for lie in told if isinstance(lie, Late)}
    return LatePostman(delivery, late) if late else delivery


class FalseReport:
    """Reports false conditions, does not report, or sends no update."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        is_idle = self._attack in (Attack.FAR, Attack.MUTE)
        kept = (effect for effect in effects if not (is_idle and isinstance(effect, Mine | StopMining)))
        return tuple(self._change(moment, effect) for effect in kept)

    def _change(self, moment: Moment, effect: Effect) -> Effect:
        if not isinstance(effect, Send) or not isinstance(effect.message.content, Gossip):
            return effect
        said, own, height = effect.message.content, moment.number, effect.message.height
        if self._attack in (Attack.FAR, Attack.MUTE):
            updates = tuple(signed for signed in said.updates if signed.update.client != own)
            said = msgspec.structs.replace(said, updates=updates)
        if self._attack is Attack.FLAP and height % 2:
            reports = tuple(signed for signed in said.reports if signed.report.client != own)
            said = msgspec.structs.replace(said, reports=reports)
        if self._attack in (Attack.FAR, Attack.SLOW):
            changed = (self._sign(moment, one, height) if one.report.client == own else one for one in said.reports)
            said = msgspec.structs.replace(said, reports=tuple(changed))
        return Send(effect.to, msgspec.structs.replace(effect.message, content=said))

    def _sign(self, moment: Moment, signed: SignedReport, height: int) -> SignedReport:
        place, report = moment.place(height), signed.report
        if place is None:
            return signed
        found = report.conditions
        slow = Conditions(found.gain_atto // 100, MAX_BUDGET_PJ, is_reachable=True)
        worse = _FAR if self._attack is Attack.FAR else slow
        false = msgspec.structs.replace(report, conditions=worse)
        return SignedReport(false, moment.signer.sign(Meaning.REPORT, place, false))


class OldBlocks:
    """Proposes the last decided block, of any proposer, for the next height."""

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        decided = [effect.block for effect in effects if isinstance(effect, Commit)]
        replayed = (moment.say(None, Proposal(block), block.header.height + 1) for block in decided)
        return (*effects, *replayed)


class Later:
    """Lets first attempts fail or last, by what it tells to a few members only and by its prevote."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._mined: Header | None = None  # of its block of the second attempt
        self._body: Body | None = None

    def change(self, moment: Moment, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        changed = [changed for effect in effects for changed in self._change(moment, effect)]
        event, state = moment.event, moment.after
        if isinstance(event, NonceFound) and event.header == self._mined and self._body is not None:
            changed.append(moment.say(None, Proposal(sign_block(moment, event.header, event.nonce, self._body))))
        if state.attempt == 1 and state.attempt_end_ns not in (None, moment.before.attempt_end_ns):
            delay_ns = max(0, state.attempt_end_ns - MARGIN_NS - moment.now_ns)
            changed.append(SetTimer(Timer.RESEND, state.chain.height + 1, 1, delay_ns))  # when everything is sent
        return tuple(changed)

    def _change(self, moment: Moment, effect: Effect) -> Iterator[Effect]:
        if isinstance(effect, Mine | StopMining) and self._attack is not Attack.STALL:
            yield from self._mine(moment, effect)
            return
        if not isinstance(effect, Send) or not isinstance(effect.message.content, Gossip):
            yield effect
            return
        said, height = effect.message.content, effect.message.height
        told = msgspec.structs.replace(said, votes=tuple(self._votes(moment, said, height)))
        for send in each_receiver(moment, effect):
            content = told if send.to in self._confidants(moment) else without_own(told, moment.number)
            yield moment.say(send.to, content, height)

    def _confidants(self, moment: Moment) -> list[int]:
        """Members that hear its statements: so many that a block for which they do not vote lacks one vote."""
        chain = moment.after.chain
        others = sorted(chain.active - {moment.number})
        if self._attack is Attack.STALL:
            return others
        if self._attack is not Attack.CONFIDE and moment.number in chain.due:
            return []  # nobody waits in the next round for a member that was silent in this one
        return others[: len(chain.active) - chain.quorum]

    def _votes(self, moment: Moment, said: Gossip, height: int) -> Iterator[SignedVote]:
        """Its prevotes of first attempts are for no block, and come when the attempt ends."""
        place, state = moment.place(height), moment.after
        is_ending = state.attempt_end_ns is not None and moment.now_ns >= state.attempt_end_ns - MARGIN_NS
        for signed in said.votes:
            vote = signed.vote
            if vote.voter != moment.number or vote.attempt > 1:
                yield signed
            elif vote.kind is Kind.PREVOTE and place is not None and (is_ending or state.attempt > 1):
                yield moment.sign_vote(msgspec.structs.replace(vote, block=digest(vote.block)), place)

    def _mine(self, moment: Moment, effect: Mine | StopMining) -> Iterator[Effect]:
        """Mine nothing; or, in the first attempt, a block of the second without most reports, and no other."""
        state = moment.after
        is_first = isinstance(effect, Mine) and effect.header.attempt == 1
        if self._attack is not Attack.AFTER or not is_first or state.mined is None:
            return
        found = state.mined.body
        body, _ = make_body(
            state.chain,
            certificate=found.parent_certificate,
            updates=found.updates,
            reports=sorted(found.reports, key=lambda signed: signed.report.client != moment.number)[:2],
            entries=(),
            blobs=state.blobs,
            cache=moment.context.cache,
        )
        self._body = body
        self._mined = make_header(state.chain, 2, moment.number, body, state.mined.header.time_ms)
        yield Mine(self._mined)


def make_attack(attack: Attack) -> Sequence[Misbehaviour]:
    """Return the changes to a selfish member's effects; a late member also needs a `LatePostman`."""
    match attack:
        case Attack.WITHHOLD | Attack.RELEASE | Attack.HOLD:
            return [Withhold(attack)]
        case Attack.FEIGN:
            return [FalseReport(Attack.SLOW), Withhold(attack)]
        case Attack.LATE_REPORT | Attack.LATE_UPDATE:
            return [Late(attack)]
        case Attack.OLD_BLOCKS:
            return [OldBlocks()]
        case Attack.CONFIDE | Attack.SPLIT | Attack.STALL | Attack.AFTER:
            return [Later(attack)]
        case Attack.CENSOR:
            return [FalseBlocks(_block_without_entries)]
    return [FalseReport(attack)]


def _block_without_entries(moment: Moment, block: Block) -> Block | None:
    return rebuild_block(moment, block, block.body.updates, ()) if block.body.entries else None
