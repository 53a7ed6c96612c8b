"""Deadlines of a round, and the cost of lateness for a member that keeps it waiting.

A member's lateness is the time that it, among at most f missing members, kept a node waiting beyond the modelled
exchange. A node tolerates lateness within a budget, the patience, that refills by a quarter of each round; beyond that
it proceeds without the member. It also delays the late member's own block by four times the lateness, since that member
could mine alone meanwhile: withholding statements wins no blocks. All of this is a voter's own judgement, not validity.
"""

from collections.abc import Collection

from bdfl.ledger.block import Block
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, modelled_costs
from bdfl.ledger.costs import NANO
from bdfl.protocol.events import Timer
from bdfl.protocol.messages import Gossip
from bdfl.protocol.state import Phase, Timing
from bdfl.protocol.transition import Draft

MAX_BACK_OFF_NS = 600 * NANO
LATE_BLOCK_FACTOR = 4  # a member that sends its report at the best moment then gains at most 2 % of its share
REFILL = 4  # rounds that refill a round's length of patience: one member makes rounds at most a quarter longer
ASK_SHARE = 1024  # of the modelled exchange: so long after it a node asks the others for what it waits for
_MAX_DOUBLINGS = 40  # enough for any deadline to reach the maximum


def deadline_ns(chain: ChainState, timing: Timing, cache: VerificationCache) -> int:
    """Time that the round after `chain` waits for updates and reports: twice the modelled exchange, plus the grace."""
    return 2 * exchange_ns(chain, timing, cache) + timing.grace_ns


def exchange_ns(chain: ChainState, timing: Timing, cache: VerificationCache) -> int:
    """Modelled time until all updates of the round after `chain` have arrived."""
    modelled = cache.once(modelled_costs, chain)
    return round(modelled.exchange_ns * timing.time_scale)


def back_off_ns(chain: ChainState, timing: Timing, cache: VerificationCache) -> int:
    """Time after which the round after `chain` may end with an idle block: exponential back-off.

    The deadline, doubled for every preceding idle block in a row, at most ten minutes or the deadline itself.
    """
    wait_ns = deadline_ns(chain, timing, cache)
    return max(wait_ns, min(wait_ns << min(chain.num_idle, _MAX_DOUBLINGS), MAX_BACK_OFF_NS))


def set_deadlines(draft: Draft) -> None:
    """Set the timers of a round that begins now."""
    chain, timing, cache = draft.chain, draft.context.timing, draft.cache
    draft.since_ns = draft.now_ns
    _note_waiting(draft)
    draft.set_timer(Timer.DEADLINE, deadline_ns(chain, timing, cache))
    if chain.num_idle:  # else the back-off ends with the deadline
        draft.set_timer(Timer.BACK_OFF, back_off_ns(chain, timing, cache))
    set_resend(draft, timing.resend_ns)


def set_resend(draft: Draft, delay_ns: int) -> None:
    """Set the timer of the next re-broadcast."""
    draft.resend_at_ns = draft.now_ns + delay_ns
    draft.set_timer(Timer.RESEND, delay_ns)


def hasten_resend(draft: Draft, delay_ns: int) -> None:
    """Let the next re-broadcast be due after `delay_ns` at the latest."""
    if draft.now_ns + delay_ns < draft.resend_at_ns and draft.phase is not Phase.DONE:
        set_resend(draft, delay_ns)


# Lateness


def note_heard(draft: Draft, member: int) -> None:
    """Record the time when all statements due from a member had arrived as announcements, not only in a block.

    Late ones are passed on at once: who alone hears them could mine alone.
    """
    if member in draft.heard_ns or not _has_said_all(draft, member):
        return
    draft.heard_ns[member] = draft.now_ns
    if draft.phase is Phase.COLLECTING and member in draft.due and _lateness_ns(draft, draft.now_ns):
        tell_of(draft, None, {member})
    _note_waiting(draft)


def tell_of(draft: Draft, to: int | None, members: Collection[int]) -> None:
    """Tell one member, or all, what these members announced."""
    held = draft.held_updates
    updates = tuple(held[member] for member in sorted(members) if member in held and member in draft.announced)
    reports = tuple(draft.reports[member] for member in sorted(members) if member in draft.reports)
    draft.send(to, Gossip(draft.attempt, updates=updates, reports=reports))


def max_late(draft: Draft) -> int:
    """Return how many missing members are late: as many as may lie. If more are missing, the network is slow."""
    return max(1, (len(draft.chain.active) - 1) // 3)


def _note_waiting(draft: Draft) -> None:
    """Record the time since when only so few members are missing that these are late."""
    if draft.waiting_since_ns is None and len(draft.due.difference(draft.heard_ns)) <= max_late(draft):
        draft.waiting_since_ns = draft.now_ns


def _has_said_all(draft: Draft, member: int) -> bool:
    update = draft.updates.get(member) if member in draft.announced else None  # none too if its model was refused
    if member in draft.chain.scheduled and (update is None or not draft.is_held(update)):
        return False
    return draft.is_last or member not in draft.chain.reporters or member in draft.reports


def _start_of_lateness_ns(draft: Draft) -> int | None:
    """Time from which missing members are late; none: too many are missing to blame any."""
    if draft.waiting_since_ns is None:
        return None
    exchanged_ns = draft.since_ns + exchange_ns(draft.chain, draft.context.timing, draft.cache)
    return max(draft.waiting_since_ns, exchanged_ns)


def is_kept_waiting(draft: Draft) -> bool:
    """Return whether collecting lasts longer than the modelled exchange because of a few members."""
    start_ns = _start_of_lateness_ns(draft) if draft.phase is Phase.COLLECTING else None
    return start_ns is not None and draft.now_ns > start_ns and not draft.due <= draft.heard_ns.keys()


def _lateness_ns(draft: Draft, heard_ns: int) -> int:
    """Lateness of a member all of whose statements had arrived at `heard_ns`."""
    start_ns = _start_of_lateness_ns(draft)
    return 0 if start_ns is None else max(0, heard_ns - start_ns)


def patience_ns(draft: Draft, member: int) -> int:
    """Lateness that a member is still allowed; initially, and at most, a deadline's length."""
    full_ns = deadline_ns(draft.chain, draft.context.timing, draft.cache)
    return min(draft.patience_ns.get(member, full_ns), full_ns)


def is_given_up(draft: Draft, member: int) -> bool:
    """Return whether the round no longer waits for a member."""
    if draft.is_deadline_over:
        return True
    start_ns = _start_of_lateness_ns(draft)
    return start_ns is not None and draft.now_ns >= start_ns + patience_ns(draft, member)


def is_punctual(draft: Draft, member: int) -> bool:
    """Return whether a member that is due used at most half of its patience: no block may omit its statements."""
    late_ns = _lateness_ns(draft, draft.heard_ns.get(member, draft.now_ns))
    return 2 * late_ns <= patience_ns(draft, member)


def is_head_start(draft: Draft, block: Block) -> bool:
    """Return whether a first-attempt block must wait, as its proposer could mine while the others waited for it."""
    ready_ns = _ready_ns(draft, block)
    return ready_ns is None or draft.now_ns < ready_ns


def _ready_ns(draft: Draft, block: Block) -> int | None:
    """Time from which a block is votable; none: not before its proposer is heard or the deadline is over.

    A proposer not heard by the deadline is late by all the time until then: the others begin to mine only now. A report
    first seen in the proposer's own block counts even if none is due: a round without training waits for it. After the
    deadline this holds in the first attempt only: later, nodes that hold different statements must converge.
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
        over_ns = draft.since_ns + deadline_ns(draft.chain, draft.context.timing, draft.cache)
        heard_ns = min(over_ns, draft.now_ns)
    return heard_ns + LATE_BLOCK_FACTOR * _lateness_ns(draft, heard_ns)


def set_review(draft: Draft) -> None:
    """Set the timer for the next time at which waiting for a member's statements or block ends."""
    times_ns = [_ready_ns(draft, candidate.block) for candidate in draft.candidates.values()]
    start_ns = _start_of_lateness_ns(draft)
    if draft.phase is Phase.COLLECTING and start_ns is not None and not draft.is_deadline_over:
        waited_for = [member for member in draft.due if member not in draft.heard_ns]
        times_ns += [start_ns + patience_ns(draft, member) for member in waited_for if member in draft.patience_ns]
        if waited_for:
            times_ns.append(start_ns + exchange_ns(draft.chain, draft.context.timing, draft.cache) // ASK_SHARE)
    ahead_ns = [time_ns for time_ns in times_ns if time_ns is not None and time_ns > draft.now_ns]
    if ahead_ns and min(ahead_ns) != draft.review_ns:
        draft.review_ns = min(ahead_ns)
        draft.set_timer(Timer.REVIEW, draft.review_ns - draft.now_ns)


def charge_lateness(draft: Draft) -> None:
    """Subtract each member's lateness from its patience, and refill each by a part of the round without it."""
    late_ns = {}
    start_ns = _start_of_lateness_ns(draft)
    closed_ns = draft.mining_since_ns or draft.now_ns
    if start_ns is not None:
        for member in draft.due:
            waited_ns = min(draft.heard_ns.get(member, closed_ns), closed_ns) - start_ns
            if waited_ns > 0:
                late_ns[member] = waited_ns
    refill_ns = (draft.now_ns - draft.since_ns - max(late_ns.values(), default=0)) // REFILL
    full_ns = deadline_ns(draft.chain, draft.context.timing, draft.cache)
    left_ns = {
        member: patience_ns(draft, member) - late_ns.get(member, 0) + refill_ns
        for member in late_ns.keys() | draft.patience_ns.keys()
    }
    draft.patience_ns = {member: max(0, left) for member, left in left_ns.items() if left < full_ns}
