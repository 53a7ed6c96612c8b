"""Verifying a chain beside reading and hashing the same files, which is the least that any verifier must do."""

import hashlib
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bdfl.learning.weights import Layout, Vector, encode_weights
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.verify import verify_chain
from benchmarks.ledger.valid_chain import ChainMaker, example_genesis, example_signer
from benchmarks.results import Result, make_result

NUM_MEMBERS = 8
PARAMETERS = 1_072_458  # of the paper's network: 4.3 MB
ASKED_SPEED = 0.5  # of reading and hashing


@dataclass(frozen=True)
class Row:
    """One way to go through all files of a chain."""

    what: str
    blocks: int
    files: int
    megabytes: float
    best_s: float
    mb_per_s: float
    speed: float  # relative to reading and hashing in one thread
    asked: float | None


def measure_verify(num_blocks: int, repeats: int, seed: int, report: Callable[[str], None]) -> list[Result]:
    """Reading and hashing in one thread and in two, and verifying, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain"
        started = time.perf_counter()
        make_chain(path, num_blocks, PARAMETERS, seed)
        report(f"verify: a chain of {num_blocks} blocks made in {time.perf_counter() - started:.0f} s")
        rows = measure_chain(path, num_blocks, repeats, report)
    notes = [
        f"{NUM_MEMBERS} members, every one's model in every block; files are in the page cache, as when just written.",
        "verify also checks signatures, work, schedules (in decimal and by running the scheduler again), queues and"
        " receipts, and aggregates every model again.",
        f"Asked for: verifying at {ASKED_SPEED:g} of the speed of reading and hashing the same bytes.",
    ]
    return [make_result("verify", "Verifying a chain beside reading and hashing its files", rows, notes)]


def make_chain(path: Path, num_blocks: int, num_parameters: int, seed: int) -> None:
    """A chain whose models are all different."""
    layout = Layout(("head.weight", "tail.weight"), ((10,), (num_parameters - 10,)))
    base = np.random.default_rng(seed).standard_normal(num_parameters).astype(np.float32)
    initial = encode_weights(base, layout)

    def weights_of(client: int, round: int) -> Vector:
        return np.asarray(base * np.float32(round + client / NUM_MEMBERS), dtype=np.float32)

    genesis = example_genesis(initial, samples=[100 + client for client in range(NUM_MEMBERS)], layout=layout)
    with ChainStore.create(path, genesis, initial, durable=False) as store:
        signers = [example_signer(number) for number in range(NUM_MEMBERS)]
        ChainMaker(store, signers, cache=VerificationCache(max_bytes=2**26)).grow(num_blocks, weights_of)


def measure_chain(path: Path, num_blocks: int, repeats: int, report: Callable[[str], None]) -> list[Row]:
    """Best of `repeats` times of each way; they take turns, so that what else the machine does hits all."""
    files = sorted(file for file in (path / "blobs").rglob("*") if file.is_file())
    num_bytes = sum(file.stat().st_size for file in files)

    def verify() -> None:
        with ChainStore.open(path, read_only=True) as store:
            found = verify_chain(store)
        assert found.is_valid, found.failure
        assert len(found.blocks) == num_blocks

    ways: dict[str, Callable[[], object]] = {
        "read and hash, one thread": lambda: [_read_and_hash(file) for file in files],
        "read and hash, two threads": lambda: _hash_in_threads(files),
        "verify": verify,
    }
    best_s = dict.fromkeys(ways, float("inf"))
    for turn in range(repeats):
        for what, action in ways.items():
            started = time.perf_counter()
            action()
            best_s[what] = min(best_s[what], time.perf_counter() - started)
        report(f"verify: turn {turn + 1} of {repeats}")
    floor_s = best_s["read and hash, one thread"]
    return [
        Row(
            what=what,
            blocks=num_blocks,
            files=len(files),
            megabytes=num_bytes / 1e6,
            best_s=seconds,
            mb_per_s=num_bytes / 1e6 / seconds,
            speed=floor_s / seconds,
            asked=ASKED_SPEED if what == "verify" else None,
        )
        for what, seconds in best_s.items()
    ]


def _hash_in_threads(files: list[Path]) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(_read_and_hash, files))


def _read_and_hash(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
