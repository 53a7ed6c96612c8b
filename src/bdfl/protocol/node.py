"""The whole node as a pure function from a state and an event to the next state and effects.

It uses no clock, network, file or randomness: time is an argument, all else comes as events and leaves as effects.
Messages are untrusted until checked: an invalid one changes nothing and is reported in a `Refused`.
"""

from bdfl.ledger.block import Kind
from bdfl.ledger.chain import ChainState
from bdfl.protocol.consensus import end_attempt, progress, receive_late_vote, receive_vote
from bdfl.protocol.deadlines import is_kept_waiting, note_heard
from bdfl.protocol.entries import receive_change, receive_evidence
from bdfl.protocol.events import (
    BlobArrived,
    ChangeOffered,
    Effect,
    Event,
    Measured,
    MessageArrived,
    NonceFound,
    PeersAppeared,
    ServeDecided,
    Started,
    Timer,
    TimerFired,
    TrainingFinished,
)
from bdfl.protocol.messages import BlockWanted, Decided, DecidedWanted, Gossip, Message, Proposal
from bdfl.protocol.proposals import ask_for_blocks, complete_candidates, finish_mining, receive_block
from bdfl.protocol.state import Context, Lock, NodeState, Phase, Recovered, find_end
from bdfl.protocol.sync import (
    ask_others,
    greet,
    hear_ahead,
    note_news,
    receive_decided,
    resume,
    say_again,
    take_followed,
    tell_lacking,
)
from bdfl.protocol.transition import Draft
from bdfl.protocol.updates import (
    enter_round,
    finish_measuring,
    finish_training,
    receive_blob,
    receive_report,
    receive_update,
)
from bdfl.protocol.votes import by_voter, key_of

NOTHING_RECOVERED = Recovered()


def begin(context: Context, chain: ChainState, recovered: Recovered = NOTHING_RECOVERED) -> NodeState:
    """The initial state of a node at the tip of its chain, from its store; its first event must be `Started`."""
    number = context.number
    own_votes = {(vote.vote.attempt, vote.vote.kind): vote for vote in recovered.votes}
    votes = {key_of(vote): vote for vote in recovered.votes}
    progress = recovered.progress
    lock = None
    if progress is not None and progress.lock:
        first = progress.lock[0].vote
        lock = Lock(first.attempt, first.block, progress.lock)
        votes |= {key_of(vote): vote for vote in progress.lock}
    reached = 1 if progress is None else progress.attempt
    attempt = max([reached, *(when for when, _ in own_votes)])
    end = find_end(context, chain)
    is_done = bool(end)
    has_prevoted = (attempt, Kind.PREVOTE) in own_votes
    state = NodeState(
        chain=chain,
        precommits=by_voter(recovered.certificate),
        phase=Phase.DONE if is_done else Phase.VOTING if has_prevoted else Phase.COLLECTING,
        attempt=attempt,
        lock=lock,
        updates={} if recovered.update is None else {number: recovered.update},
        reports={} if recovered.report is None else {number: recovered.report},
        blobs=dict(recovered.blobs),
        votes=votes,
        own_votes=own_votes,
        end=end,
        lacks_model=recovered.lacks_model,
        model=recovered.model,
    )
    draft = Draft(context, state, 0, 0)
    if not is_done:
        for block in recovered.blocks:
            receive_block(draft, block.header.proposer, block, is_decided=True)
    return draft.finish()[0]


def step(
    context: Context, state: NodeState, event: Event, now_ns: int, utc_ms: int
) -> tuple[NodeState, tuple[Effect, ...]]:
    """The state after an event and the effects to carry out, in order.

    `now_ns` is a monotonic clock; `utc_ms` is the wall clock, used only to stamp blocks and judge their times.
    """
    if isinstance(event, TimerFired) and not _is_due(state, event):
        return state, ()
    draft = Draft(context, state, now_ns, utc_ms)
    held = draft.holdings
    _handle(draft, event)
    take_followed(draft)
    while draft.inbox:
        message = draft.inbox.pop(0)
        _receive(draft, message)
        take_followed(draft)
    if draft.holdings != held and isinstance(event, MessageArrived | BlobArrived):
        note_news(draft)
    return draft.finish()


def _is_due(state: NodeState, event: TimerFired) -> bool:
    """Return whether a timer is for the current height, and for the current attempt if it is of one."""
    is_present = event.height == state.chain.height + 1 and state.phase is not Phase.DONE
    return is_present and (event.timer not in (Timer.ATTEMPT, Timer.LEADER) or event.attempt == state.attempt)


def _handle(draft: Draft, event: Event) -> None:
    match event:
        case MessageArrived(message):
            _receive(draft, message)
            return
        case BlobArrived(holder, data):
            _receive_blob(draft, holder, data)
            return
        case PeersAppeared():
            greet(draft)
            return
        case Started():
            if draft.phase is not Phase.DONE:
                draft.since_ms = draft.utc_ms
                enter_round(draft)
                say_again(draft)
        case TimerFired(timer=Timer.DEADLINE):
            draft.is_deadline_over = True
            draft.is_back_off_over |= draft.chain.num_idle == 0
        case TimerFired(timer=Timer.BACK_OFF):
            draft.is_back_off_over = True
        case TimerFired(timer=Timer.ATTEMPT):
            end_attempt(draft)
        case TimerFired(timer=Timer.LEADER):
            draft.leader_until_ns = draft.now_ns
        case TimerFired(timer=Timer.RESEND):
            say_again(draft)
        case TimerFired(timer=Timer.REVIEW) if is_kept_waiting(draft):
            say_again(draft)
        case TrainingFinished():
            finish_training(draft, event)
        case Measured():
            finish_measuring(draft, event)
        case NonceFound():
            finish_mining(draft, event)
        case ChangeOffered(change):
            if receive_change(draft, None, change):
                draft.send(None, Gossip(draft.attempt, changes=(change,)))
    progress(draft)


def _receive(draft: Draft, message: Message) -> None:
    """Dispatch a message by its content and height."""
    sender = message.sender
    if message.chain != draft.chain.chain:
        draft.refuse(sender, f"message of chain {message.chain.hex()[:12]}, {draft.chain.chain.hex()[:12]} expected")
        return
    if sender == draft.number or not _is_heard(draft, message):
        draft.refuse(sender, f"message from {sender}, another member of {len(draft.chain.active)} expected")
        return
    match message.content:
        case DecidedWanted():
            if 1 <= message.height <= draft.chain.height:
                draft.do(ServeDecided(sender, message.height))
        case content if message.height < draft.height:
            if isinstance(content, Gossip) and message.height == draft.chain.height:
                receive_late_vote(draft, sender, content.votes)
            if isinstance(content, Gossip) and content.wants_answer and message.height >= 1:
                draft.do(ServeDecided(sender, message.height))
        case _ if message.height > draft.height or draft.phase is Phase.DONE:
            hear_ahead(draft, message)
        case _:
            _receive_present(draft, message)


def _receive_blob(draft: Draft, holder: int, data: bytes) -> None:
    taken = None if draft.phase is Phase.DONE else receive_blob(draft, holder, data)
    if taken is not None:
        if taken == draft.chain.model:
            resume(draft)
        complete_candidates(draft)
        progress(draft)


def _is_heard(draft: Draft, message: Message) -> bool:
    """Return whether the sender is or will be a member; a removed one may ask until it knows of its removal."""
    sender, chain = message.sender, draft.chain
    if sender in chain.speakers:
        return True
    last = chain.last_height(sender)
    if last is None or chain.public_keys[sender] is None:
        return False
    more = draft.context.keep_blocks if isinstance(message.content, DecidedWanted) else 0  # they certify its last block
    return message.height <= last + more


def _receive_present(draft: Draft, message: Message) -> None:
    """Handle a message about the height worked on."""
    sender, extent = message.sender, draft.extent
    match message.content:
        case BlockWanted(block):
            if block in draft.candidates:
                draft.send(sender, Proposal(draft.candidates[block].block))
            return
        case Proposal(block):
            receive_block(draft, sender, block)
        case Decided() as decided:
            receive_decided(draft, sender, message.height, decided)
        case Gossip() as gossip:
            for update in gossip.updates:
                receive_update(draft, sender, update)
                if update.update.client in draft.updates:
                    draft.announced |= {update.update.client}
                    note_heard(draft, update.update.client)
            for report in gossip.reports:
                receive_report(draft, sender, report)
            for vote in gossip.votes:
                receive_vote(draft, sender, vote)
            ask_for_blocks(draft, sender, gossip.blocks)
            for change in gossip.changes:
                receive_change(draft, sender, change)
            for evidence in gossip.evidence:
                receive_evidence(draft, sender, evidence)
            if gossip.wants_answer:
                tell_lacking(draft, sender, gossip)
    ask_others(draft, sender, message.content)
    if draft.extent != extent:
        progress(draft)
