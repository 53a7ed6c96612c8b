"""Persistence and recovery of a node: storing what it asks to be kept, and restarting from the store alone."""

from bdfl.ledger.block import ModelUpdate
from bdfl.ledger.chain import ChainState, apply_block, start_chain
from bdfl.ledger.keeping import Store
from bdfl.ledger.toolbox import Toolbox
from bdfl.protocol.events import Kept, KeptBlob, KeptBlock, KeptProgress, KeptReport, KeptUpdate, KeptVote
from bdfl.protocol.node import begin
from bdfl.protocol.state import Context, NodeState, Recovered


def keep(store: Store, kept: Kept) -> None:
    match kept:
        case KeptBlob(digest, data):
            store.put_blob(digest, data)
        case KeptVote(height, vote):
            store.put_vote(height, vote)
        case KeptProgress(height, attempt, lock):
            store.put_progress(height, attempt, lock)
        case KeptBlock(block):
            store.put_candidate(block)
        case KeptUpdate(height, update):
            store.put_update(height, update)
        case KeptReport(height, report):
            store.put_report(height, report)


def recover(context: Context, store: Store) -> NodeState:
    """Recover the state of a node from its store alone."""
    chain = recover_chain(store, context.toolbox)
    return begin(context, chain, read_recovered(store, chain))


def recover_chain(store: Store, toolbox: Toolbox) -> ChainState:
    """Replay the blocks of a store and return the chain at its tip."""
    chain = start_chain(store.genesis, toolbox)
    for block in store.blocks():
        chain = apply_block(chain, block, toolbox)
    return chain


def read_recovered(store: Store, chain: ChainState) -> Recovered:
    """Read the stored data of the open height; `chain` is the store's chain at its tip."""
    kept = store.read_round(chain.height + 1)
    updates: list[ModelUpdate] = [signed.update for signed in kept.updates]
    updates += [signed.update for block in kept.candidates for signed in block.body.updates]
    blobs = {update.model: store.get_blob(update.model) for update in updates if update.model}
    return Recovered(
        certificate=store.certificate(chain.height) if chain.height else (),
        update=kept.updates[0] if kept.updates else None,
        report=kept.reports[0] if kept.reports else None,
        blocks=kept.candidates,
        votes=kept.votes,
        progress=KeptProgress(kept.height, kept.attempt, kept.lock) if kept.attempt else None,
        blobs={name: data for name, data in blobs.items() if data is not None},
        lacks_model=not store.has_blob(chain.model),
    )
