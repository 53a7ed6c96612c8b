"""Deadlines of a round: until when it waits, for whom, and what a member loses that keeps it waiting.

A member is late by as long as it alone, or with as many others as may lie, kept a node waiting beyond the modelled
exchange. A node bears lateness within a patience that refills by a quarter of each round: beyond that it goes on
without the member. And it lets the late member's own block wait four times as long as it waited for the member, because
that member could mine alone meanwhile: holding statements back wins no blocks. All of it is a voter's own judgement,
none validity.
"""

from bdfl.ledger.block import Block
from bdfl.ledger.chain import ChainState, modelled_costs
from bdfl.ledger.toolbox import Toolbox
from bdfl.ledger.units import NANO
from bdfl.protocol.draft import Draft
from bdfl.protocol.events import Timer
from bdfl.protocol.state import Phase, Timing

MAX_BACK_OFF_NS = 600 * NANO
LATE_BLOCK_FACTOR = 4  # who releases its report at the best moment still gains at most 2 % of its share
REFILL = 4  # rounds that give back a round's length of patience: rounds last at most a quarter longer for one member
_MAX_DOUBLINGS = 40  # more than any deadline needs to get there


def deadline_ns(chain: ChainState, timing: Timing, toolbox: Toolbox) -> int:
    """Time that the round after `chain` waits for updates and reports: twice the modelled exchange, and the grace."""
    return 2 * exchange_ns(chain, timing, toolbox) + timing.grace_ns


def exchange_ns(chain: ChainState, timing: Timing, toolbox: Toolbox) -> int:
    """Time after which all updates of the round after `chain` should be here, by the model."""
    modelled = toolbox.once((modelled_costs, chain), lambda: modelled_costs(chain, toolbox))
    return round(modelled.exchange_ns * timing.time_scale)


def back_off_ns(chain: ChainState, timing: Timing, toolbox: Toolbox) -> int:
    """Time after which the round after `chain` may end with an idle block.

    Its deadline, doubled for every idle block in a row before it, at most ten minutes unless that is longer itself.
    """
    wait_ns = deadline_ns(chain, timing, toolbox)
    return max(wait_ns, min(wait_ns << min(chain.num_idle, _MAX_DOUBLINGS), MAX_BACK_OFF_NS))


def set_deadlines(draft: Draft) -> None:
    """Sets the timers of a round that begins now."""
    chain, timing, toolbox = draft.chain, draft.context.timing, draft.toolbox
    draft.since_ns = draft.now_ns
    _note_waiting(draft)
    draft.set_timer(Timer.DEADLINE, deadline_ns(chain, timing, toolbox))
    if chain.num_idle:  # else it ends with the deadline
        draft.set_timer(Timer.BACK_OFF, back_off_ns(chain, timing, toolbox))
    draft.set_timer(Timer.RESEND, timing.resend_ns)


# Lateness


def note_heard(draft: Draft, member: int) -> None:
    """Notes when all that is due from a member was here by its own word, not first seen inside of a block."""
    if member in draft.heard_ns or not _has_said_all(draft, member):
        return
    draft.heard_ns[member] = draft.now_ns
    _note_waiting(draft)


def _note_waiting(draft: Draft) -> None:
    """Notes from when on no more members are waited for than may lie, at least one."""
    num_liars = max(1, (len(draft.chain.active) - 1) // 3)
    if draft.waiting_since_ns is None and len(draft.due.difference(draft.heard_ns)) <= num_liars:
        draft.waiting_since_ns = draft.now_ns


def _has_said_all(draft: Draft, member: int) -> bool:
    if member in draft.chain.scheduled and not (member in draft.announced and draft.is_held(draft.updates[member])):
        return False
    return draft.is_last or member not in draft.chain.reporters or member in draft.reports


def _start_of_lateness_ns(draft: Draft) -> int | None:
    """From when on who is waited for is late; none: too many are waited for to blame anybody."""
    if draft.waiting_since_ns is None:
        return None
    exchanged_ns = draft.since_ns + exchange_ns(draft.chain, draft.context.timing, draft.toolbox)
    return max(draft.waiting_since_ns, exchanged_ns)


def _lateness_ns(draft: Draft, heard_ns: int) -> int:
    """Time by which a member is late of whom all was here at a time."""
    start_ns = _start_of_lateness_ns(draft)
    return 0 if start_ns is None else max(0, heard_ns - start_ns)


def patience_ns(draft: Draft, member: int) -> int:
    """Lateness that a member is still allowed; at first, and at most, a deadline's length."""
    full_ns = deadline_ns(draft.chain, draft.context.timing, draft.toolbox)
    return min(draft.patience_ns.get(member, full_ns), full_ns)


def is_given_up(draft: Draft, member: int) -> bool:
    """Tells if a round goes on without what is due from a member."""
    if draft.is_deadline_over:
        return True
    start_ns = _start_of_lateness_ns(draft)
    return start_ns is not None and draft.now_ns >= start_ns + patience_ns(draft, member)


def is_punctual(draft: Draft, member: int) -> bool:
    """Tells if a member's statements came well before anybody gave it up, so that no block may leave them out."""
    late_ns = _lateness_ns(draft, draft.heard_ns.get(member, draft.now_ns)) if member in draft.due else 0
    return 2 * late_ns <= patience_ns(draft, member)


def is_head_start(draft: Draft, block: Block) -> bool:
    """Tells if a first-attempt block has to wait because its proposer could mine while the others waited for it."""
    ready_ns = _ready_ns(draft, block)
    return ready_ns is None or draft.now_ns < ready_ns


def _ready_ns(draft: Draft, block: Block) -> int | None:
    """Time from which on a block may be voted for; none: not before its proposer is heard, or the deadline is over.

    Who was not heard by then is late by all the time until the deadline: the others begin to mine only now. A report
    first seen in the proposer's own block counts though none is due: a round in which nobody could train waits for it.
    After the deadline that holds in the first attempt only: later, members that held different things come together.
    """
    member = block.header.proposer
    report = next((signed for signed in block.body.reports if signed.report.client == member), None)
    is_free = block.header.attempt > 1 or (draft.attempt > 1 and draft.is_deadline_over)
    if is_free or (report is None and member not in draft.due):
        return draft.now_ns
    heard_ns = draft.heard_ns.get(member)
    if heard_ns is None or (report is not None and report != draft.reports.get(member)):
        if not draft.is_deadline_over:
            return None
        over_ns = draft.since_ns + deadline_ns(draft.chain, draft.context.timing, draft.toolbox)
        heard_ns = min(over_ns, draft.now_ns)
    return heard_ns + LATE_BLOCK_FACTOR * _lateness_ns(draft, heard_ns)


def set_review(draft: Draft) -> None:
    """Sets the timer for the next time at which waiting ends for somebody's statements or block."""
    times_ns = [_ready_ns(draft, candidate.block) for candidate in draft.candidates.values()]
    start_ns = _start_of_lateness_ns(draft)
    if draft.phase is Phase.COLLECTING and start_ns is not None and not draft.is_deadline_over:
        waited_for = [member for member in draft.due if member not in draft.heard_ns]
        times_ns += [start_ns + patience_ns(draft, member) for member in waited_for if member in draft.patience_ns]
    ahead_ns = [time_ns for time_ns in times_ns if time_ns is not None and time_ns > draft.now_ns]
    if ahead_ns and min(ahead_ns) != draft.review_ns:
        draft.review_ns = min(ahead_ns)
        draft.set_timer(Timer.REVIEW, draft.review_ns - draft.now_ns)


def charge_lateness(draft: Draft) -> None:
    """Takes what each member kept the round waiting off its patience, and refills everybody's by a part of the rest."""
    late_ns = {}
    start_ns = _start_of_lateness_ns(draft)
    closed_ns = draft.mining_since_ns or draft.now_ns
    if start_ns is not None:
        for member in draft.due:
            waited_ns = min(draft.heard_ns.get(member, closed_ns), closed_ns) - start_ns
            if waited_ns > 0:
                late_ns[member] = waited_ns
    refill_ns = (draft.now_ns - draft.since_ns - max(late_ns.values(), default=0)) // REFILL
    full_ns = deadline_ns(draft.chain, draft.context.timing, draft.toolbox)
    left_ns = {
        member: patience_ns(draft, member) - late_ns.get(member, 0) + refill_ns
        for member in late_ns.keys() | draft.patience_ns.keys()
    }
    draft.patience_ns = {member: max(0, left) for member, left in left_ns.items() if left < full_ns}
