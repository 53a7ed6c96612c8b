"""Updates and reports of a round: train, report, announce, and validate those of other members."""

from collections.abc import Collection
from functools import partial

from bdfl.identity import Meaning
from bdfl.ledger.block import ModelUpdate, Report, SignedReport, SignedUpdate, TwoUpdates
from bdfl.ledger.cache import decode_parent
from bdfl.ledger.chain_params import blob_limit
from bdfl.ledger.errors import InvalidBlock
from bdfl.ledger.statements import validate_report, validate_update, validate_update_blob
from bdfl.protocol.deadlines import is_given_up, is_punctual, note_heard, set_deadlines
from bdfl.protocol.entries import note_offence
from bdfl.protocol.events import (
    FetchBlob,
    KeptBlob,
    KeptStatement,
    Measure,
    Measured,
    Store,
    Train,
    TrainingFinished,
)
from bdfl.protocol.messages import Gossip
from bdfl.protocol.state import Phase
from bdfl.protocol.transition import Draft

MAX_BLOBS = 2  # models of one member requested at a height; more only if a quorum voted for them


def enter_round(draft: Draft) -> None:
    """Start a round: its timers, this node's training and its report for the round after."""
    set_deadlines(draft)
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
    """Sign and announce this node's update; if training diverged, a declined one, so that no node waits for it."""
    is_due = event.height == draft.height and event.parent == draft.chain.tip and draft.phase is not Phase.DONE
    if not is_due or draft.number in draft.updates or draft.number not in draft.chain.schedule.selected:
        return
    if not draft.is_member:
        return
    if event.model is None:
        _give_update(draft, b"", event.epsilon_micro)
        return
    model = draft.cache.digest(event.model)
    draft.blobs[model] = event.model
    draft.do(Store(KeptBlob(model, event.model)))
    _give_update(draft, model, event.epsilon_micro)


def _give_update(draft: Draft, model: bytes, epsilon_micro: int = 0) -> None:
    samples = draft.chain.members[draft.number].limits.samples
    size = draft.chain.genesis.model.size if model else 0
    spent_micro = max(epsilon_micro, draft.chain.epsilon_micro[draft.number])  # an estimate may fall, epsilon may not
    update = ModelUpdate(draft.number, samples, size, model, spent_micro)
    signed = SignedUpdate(update, draft.context.signer.sign(Meaning.UPDATE, draft.chain.place, update))
    draft.updates[draft.number] = signed
    draft.announced |= {draft.number}
    note_in_time(draft, draft.number)
    draft.do(Store(KeptStatement(draft.height, signed)))
    draft.send(None, Gossip(draft.attempt, updates=(signed,)))


def finish_measuring(draft: Draft, event: Measured) -> None:
    """Sign and announce this node's report for the next round."""
    is_due = event.round == draft.height + 1 and draft.phase is not Phase.DONE
    if not is_due or draft.number in draft.reports or not draft.is_member:
        return
    report = Report(draft.number, event.round, event.conditions, event.receipt)
    signed = SignedReport(report, draft.context.signer.sign(Meaning.REPORT, draft.chain.place, report))
    draft.reports[draft.number] = signed
    _note_report_in_time(draft, draft.number)
    draft.do(Store(KeptStatement(draft.height, signed)))
    draft.send(None, Gossip(draft.attempt, reports=(signed,)))


def receive_report(draft: Draft, sender: int, signed: SignedReport) -> None:
    """Take a member's report; of two the first counts."""
    if signed.report.client in draft.reports or not draft.accepts(sender, validate_report, signed):
        return
    draft.reports[signed.report.client] = signed
    _note_report_in_time(draft, signed.report.client)


def receive_update(draft: Draft, sender: int, signed: SignedUpdate) -> None:
    """Take a member's update and request its blob from the sender; of two the first counts, and both are evidence."""
    update = signed.update
    known = draft.updates.get(update.client)
    refused = update.samples and update.model in draft.refused
    if known == signed or refused or not draft.accepts(sender, validate_update, signed):
        return
    if known is not None and known.update != update:
        if update.client not in draft.two_faced:  # other kinds of evidence do not show which update to leave out
            draft.evidence.pop(update.client, None)
            note_offence(draft, TwoUpdates(draft.chain.place, known, signed))
        return
    draft.updates[update.client] = signed
    if not draft.is_held(signed):
        want_blob(draft, sender, update.model, update.client)
    note_in_time(draft, update.client)


def want_blob(draft: Draft, holder: int, blob: bytes, client: int, *, is_needed: bool = False) -> None:
    """Request a client's blob once, and again at every re-broadcast; beyond `MAX_BLOBS` per client only if needed."""
    asked = draft.asked_blobs.get(client, ())
    if blob not in asked:
        if len(asked) >= MAX_BLOBS and not is_needed:
            return
        draft.asked_blobs[client] = (*asked, blob)
    if blob not in draft.wanted_blobs and blob not in draft.blobs and blob not in draft.refused:
        draft.wanted_blobs[blob] = client
        fetch_blob(draft, blob, holder)


def fetch_blob(draft: Draft, blob: bytes, holder: int) -> None:
    draft.asked_holders = {**draft.asked_holders, blob: draft.asked_holders.get(blob, frozenset()) | {holder}}
    draft.do(FetchBlob(blob, holder))


def receive_blob(draft: Draft, sender: int, data: bytes) -> bytes | None:
    """Take a requested blob and return its digest; none if it is refused. An invalid model is not requested again."""
    form = draft.chain.genesis.model
    if len(data) not in (form.size, blob_limit(draft.chain.genesis)):
        draft.refuse(sender, f"blob: {len(data)} bytes given, {form.size} expected")
        return None
    blob = draft.cache.digest(data)
    client = draft.wanted_blobs.pop(blob, None)
    if client is None:
        if blob not in draft.blobs:
            draft.refuse(None, f"blob {blob.hex()[:12]}: not wanted, or not any more")  # not the sender's fault
        return None
    samples = draft.chain.members[client].limits.samples
    server = draft.chain.params.server if draft.lacks_model and blob == draft.chain.model else None
    try:
        if server is None:
            validate_update_blob(draft.chain, ModelUpdate(client, samples, form.size, blob, 0), data, draft.cache)
        else:
            decode_parent(server, data, draft.chain.layout)
    except InvalidBlock as error:
        draft.refuse(client, error)
        draft.refused |= {blob}
        draft.updates = {  # who has no data names the global model, and nobody needs its bytes
            who: signed
            for who, signed in draft.updates.items()
            if signed.update.model != blob or not signed.update.samples
        }
        return None
    if server is None:
        draft.blobs[blob] = data
    else:
        draft.model = data
    draft.do(Store(KeptBlob(blob, data)))
    note_in_time(draft, client)
    return blob


def note_in_time(draft: Draft, client: int) -> None:
    """Record the statements held while collecting: a block of the first attempt must not omit them."""
    if draft.phase is Phase.COLLECTING:
        draft.in_time_updates = frozenset(draft.held_updates)
    _note_report_in_time(draft, client)


def _note_report_in_time(draft: Draft, client: int) -> None:
    if draft.phase is Phase.COLLECTING:
        draft.note_reports()
    note_heard(draft, client)


def find_left_out(draft: Draft, updates: Collection[int], reports: Collection[int]) -> frozenset[int]:
    """Members of which a block with these clients' statements omits one that this node held while collecting.

    Those of a late member may be omitted: other nodes may have given it up before. So may those of a member that none
    waits for: it could tell them to a few nodes only, whose votes would then be missing.
    """
    missed = draft.in_time_updates.difference(updates).union(set(draft.in_time_reports).difference(reports))
    return frozenset(client for client in missed & draft.due if is_punctual(draft, client))


def is_complete(draft: Draft) -> bool:
    """Return whether all due statements are held, except those of members given up."""
    return not any(map(partial(_is_waited_for, draft), draft.chain.scheduled)) and (
        draft.is_last
        or draft.reports.keys() >= draft.chain.reporters
        or all(is_given_up(draft, client) for client in draft.chain.reporters.difference(draft.reports))
    )


def _is_waited_for(draft: Draft, client: int) -> bool:
    is_here = client in draft.updates and draft.is_held(draft.updates[client])
    return not is_here and not is_given_up(draft, client)
