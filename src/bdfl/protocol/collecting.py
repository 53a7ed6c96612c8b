"""The first half of a round: report, train, announce, and check what the others give, until collecting is over."""

from bdfl.identity import Meaning
from bdfl.ledger.block import ModelUpdate, Report, SignedReport, SignedUpdate, TwoUpdates
from bdfl.ledger.chain import ChainState, modelled_costs
from bdfl.ledger.errors import InvalidBlock
from bdfl.ledger.rules import validate_report, validate_update, validate_update_blob
from bdfl.ledger.toolbox import Toolbox
from bdfl.ledger.units import NANO
from bdfl.protocol.draft import Draft
from bdfl.protocol.events import (
    KeptBlob,
    KeptReport,
    KeptUpdate,
    Measure,
    Measured,
    Store,
    Timer,
    Train,
    TrainingFinished,
)
from bdfl.protocol.messages import BlobWanted, Hearsay
from bdfl.protocol.state import Phase, Timing

MAX_BACK_OFF_NS = 600 * NANO
_MAX_DOUBLINGS = 40  # more than any deadline needs to get there


def deadline_ns(chain: ChainState, timing: Timing, toolbox: Toolbox) -> int:
    """Time that the round after `chain` waits for updates and reports: twice the modelled exchange, and the grace."""
    exchange_ns = toolbox.once((modelled_costs, chain), lambda: modelled_costs(chain, toolbox)).exchange_ns
    return round(2 * exchange_ns * timing.time_scale) + timing.grace_ns


def back_off_ns(chain: ChainState, timing: Timing, toolbox: Toolbox) -> int:
    """Time after which the round after `chain` may end with an idle block.

    Its deadline, doubled for every idle block in a row before it, at most ten minutes unless that is longer itself.
    """
    wait_ns = deadline_ns(chain, timing, toolbox)
    return max(wait_ns, min(wait_ns << back_off_doublings(chain), MAX_BACK_OFF_NS))


def back_off_doublings(chain: ChainState) -> int:
    """Number of doublings of the deadline of the round after `chain`; none while those who could train sit out.

    A rest is counted in rounds and grows by itself: backed off as well, it would take days.
    """
    if not chain.schedule.is_feasible and any(map(chain.is_resting, chain.conditions)):
        return 0
    return min(chain.num_idle, _MAX_DOUBLINGS)


def enter_round(draft: Draft) -> None:
    """Sets a round going: its timers, this node's training and its report for the round after."""
    chain, timing, toolbox = draft.chain, draft.context.timing, draft.toolbox
    draft.set_timer(Timer.DEADLINE, deadline_ns(chain, timing, toolbox))
    if back_off_doublings(chain):  # else it ends with the deadline
        draft.set_timer(Timer.BACK_OFF, back_off_ns(chain, timing, toolbox))
    draft.set_timer(Timer.RESEND, timing.resend_ns)
    if not draft.is_member:
        return
    if draft.number in draft.chain.schedule.selected and draft.number not in draft.updates:
        if draft.chain.members[draft.number].limits.samples == 0:
            _give_update(draft, draft.chain.model)
        else:
            draft.do(Train(draft.height, draft.chain.tip, draft.chain.model))
    if not (draft.is_last or draft.is_leaving or draft.number in draft.reports):
        draft.do(Measure(draft.height + 1))


def finish_training(draft: Draft, event: TrainingFinished) -> None:
    """Signs and announces this node's model; one that diverged is announced as such, so that nobody waits for it."""
    is_due = event.height == draft.height and event.parent == draft.chain.tip and draft.phase is not Phase.DONE
    if not is_due or draft.number in draft.updates or draft.number not in draft.chain.schedule.selected:
        return
    if not draft.is_member:
        return
    if event.model is None:
        _give_update(draft, b"", event.epsilon_micro)
        return
    model = draft.toolbox.digest(event.model)
    draft.blobs[model] = event.model
    draft.do(Store(KeptBlob(model, event.model)))
    _give_update(draft, model, event.epsilon_micro)


def _give_update(draft: Draft, model: bytes, epsilon_micro: int = 0) -> None:
    samples = draft.chain.members[draft.number].limits.samples
    size = draft.chain.genesis.model.size if model else 0
    spent_micro = max(epsilon_micro, draft.chain.epsilon_micro[draft.number])  # an estimate may waver, a sum cannot
    update = ModelUpdate(draft.number, samples, size, model, spent_micro)
    signed = SignedUpdate(update, draft.context.signer.sign(Meaning.UPDATE, draft.chain.place, update))
    draft.updates[draft.number] = signed
    note_in_time(draft)
    draft.do(Store(KeptUpdate(draft.height, signed)))
    draft.send(None, Hearsay(draft.attempt, updates=(signed,)))


def finish_measuring(draft: Draft, event: Measured) -> None:
    """Signs and announces this node's report for the next round."""
    is_due = event.round == draft.height + 1 and draft.phase is not Phase.DONE
    if not is_due or draft.number in draft.reports or not draft.is_member:
        return
    report = Report(draft.number, event.round, event.conditions, event.receipt)
    signed = SignedReport(report, draft.context.signer.sign(Meaning.REPORT, draft.chain.place, report))
    draft.reports[draft.number] = signed
    note_in_time(draft)
    draft.do(Store(KeptReport(draft.height, signed)))
    draft.send(None, Hearsay(draft.attempt, reports=(signed,)))


def receive_report(draft: Draft, sender: int, signed: SignedReport) -> None:
    """Takes a member's report; of two the first counts."""
    if signed.report.client in draft.reports:
        return
    try:
        draft.approve(validate_report, signed)
    except InvalidBlock as error:
        draft.refuse(sender, error)
        return
    draft.reports[signed.report.client] = signed
    _note_reports_in_time(draft)


def receive_update(draft: Draft, sender: int, signed: SignedUpdate) -> None:
    """Takes a member's update and asks the sender for its blob; two different ones are evidence, the first counts."""
    update = signed.update
    known = draft.updates.get(update.client)
    if known == signed or update.model in draft.refused:
        return
    try:
        draft.approve(validate_update, signed)
    except InvalidBlock as error:
        draft.refuse(sender, error)
        return
    if known is not None and known.update != update:
        draft.evidence.setdefault(update.client, TwoUpdates(draft.chain.place, known, signed))
        return
    draft.updates[update.client] = signed
    if not draft.is_held(signed):
        want_blob(draft, sender, update.model, update.client)
    note_in_time(draft)


def want_blob(draft: Draft, holder: int, blob: bytes, client: int) -> None:
    """Asks for a blob once; again when everything is said again."""
    if blob not in draft.wanted_blobs and blob not in draft.blobs and blob not in draft.refused:
        draft.wanted_blobs[blob] = client
        draft.send(holder, BlobWanted(blob))


def receive_blob(draft: Draft, sender: int, data: bytes) -> bytes | None:
    """The digest of a blob that was wanted and is taken, none if it is not; a wrong model is never asked for again."""
    form = draft.chain.genesis.model
    if len(data) != form.size:
        draft.refuse(sender, f"blob: {len(data)} bytes given, {form.size} expected")
        return None
    blob = draft.toolbox.digest(data)
    client = draft.wanted_blobs.pop(blob, None)
    if client is None:
        if blob not in draft.blobs:
            draft.refuse(None, f"blob {blob.hex()[:12]}: not wanted, or not any more")  # the giver may not know
        return None
    samples = draft.chain.members[client].limits.samples
    try:
        validate_update_blob(draft.chain, ModelUpdate(client, samples, form.size, blob, 0), data, draft.toolbox)
    except InvalidBlock as error:
        draft.refuse(client, error)
        draft.refused |= {blob}
        draft.updates = {who: signed for who, signed in draft.updates.items() if signed.update.model != blob}
        return None
    draft.blobs[blob] = data
    draft.do(Store(KeptBlob(blob, data)))
    note_in_time(draft)
    return blob


def note_in_time(draft: Draft) -> None:
    """Remembers what is held while collecting: a block of the first attempt may not leave it out."""
    if draft.phase is Phase.COLLECTING:
        draft.in_time_updates = frozenset(draft.held_updates)
    _note_reports_in_time(draft)


def _note_reports_in_time(draft: Draft) -> None:
    if draft.phase is Phase.COLLECTING:
        draft.note_reports()


def is_complete(draft: Draft) -> bool:
    """Whether every scheduled member's update is held, and a report of everybody it can be expected of."""
    chain = draft.chain
    if not all(client in draft.updates and draft.is_held(draft.updates[client]) for client in chain.schedule.selected):
        return False
    return draft.is_last or draft.reports.keys() >= chain.reporters
