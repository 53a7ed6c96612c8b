"""Run by tests as a process to be killed: goes on with the chain in a folder, says after each step what is now kept.

Arguments: the folder; `durable` or `fast`; with `on-demand` every block waits for a line on standard input.
"""

import sys
from pathlib import Path

from bdfl.ledger.block import Kind
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from benchmarks.ledger.sample_chain import SampleChain, sample_chain, sample_vote

NUM_BLOCKS = 200
KEEP_BLOCKS = 3


def written_chain() -> SampleChain:
    """The chain that is written; the same in every process."""
    return sample_chain(NUM_BLOCKS, num_members=2, model_bytes=50_000)


def write(path: Path, *, durable: bool, on_demand: bool) -> None:
    chain = written_chain()
    if (path / DATABASE_FILE).exists():
        store = ChainStore.open(path, durable=durable)
    else:
        store = ChainStore.create(path, chain.genesis, chain.initial_model, durable=durable)
    with store:
        for stage in chain.stages[store.height :]:
            if on_demand and not sys.stdin.readline():
                return
            height = stage.block.header.height
            for blob, data in stage.blobs.items():
                store.put_blob(blob, data)
                _say("blob", height, blob.hex())
            store.put_statement(stage.block.header.height, stage.block)
            _say("candidate", height)
            store.put_statement(height, sample_vote(height, 1, stage.block.digest, 0, Kind.PREVOTE))
            _say("vote", height)
            store.append(stage.block, stage.certificate)
            _say("block", height)
            _say("pruned", store.prune(KEEP_BLOCKS).checkpoint)


def _say(what: str, number: int, detail: str = "-") -> None:
    print(what, number, detail, flush=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]), durable="durable" in sys.argv, on_demand="on-demand" in sys.argv)
