"""Time to keep a block and its models, beside the least that the disk takes for the same bytes."""

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from bdfl.encoding import digest, encode
from bdfl.ledger.sqlite_store import ChainStore
from benchmarks.ledger.sample_chain import SampleChain, Stage, sample_chain
from benchmarks.results import Result, make_result

Report = Callable[[str], None]
NUM_MEMBERS = 8
PAPER_MODEL_BYTES = 4_300_000  # the paper's CNN
DIGITS_MODEL_BYTES = 9_000


@dataclass(frozen=True)
class StoreRow:
    """Median over blocks (ms); `of_floor` is the median of each block's ratio to the floor of the same turn."""

    what: str
    model_mb: float
    models: int
    store_ms: float
    floor_ms: float
    of_floor: float


def measure_storing(num_blocks: int, report: Report, folder: Path | None = None) -> list[Result]:
    """Writing and reading blocks of several sizes, in a temporary folder unless one is given."""
    rows = []
    for model_bytes in (DIGITS_MODEL_BYTES, PAPER_MODEL_BYTES):
        for num_models in (1, NUM_MEMBERS + 1):
            report(f"storing: {num_blocks} blocks with {num_models} models of {model_bytes:,} bytes")
            chain = sample_chain(num_blocks, num_members=NUM_MEMBERS, model_bytes=model_bytes)
            with tempfile.TemporaryDirectory(dir=folder) as name:
                rows += _measure_chain(Path(name), chain, num_models)
    notes = [
        "Floor of writing: each model into a new file with fsync and fsync of the folder, then the block at the end of "
        "one file with fsync. Not durable: the same without fsync. Floor of reading: read and SHA-256.",
        "A block with 1 model is what a node adds that had its members' updates before; with "
        f"{NUM_MEMBERS + 1}, the whole round. Store and floor take turns on the same disk.",
        "The first blob in each of the 256 folders costs the store one fsync more.",
    ]
    return [make_result("storing", "Storing: a block with its models", rows, notes)]


def _measure_chain(folder: Path, chain: SampleChain, num_models: int) -> list[StoreRow]:
    """Every block by the store and by the floor, in turns; durably, then not."""
    model_mb = len(chain.initial_model) / 1e6
    lasting = _measure_blocks(folder / "durable", chain, num_models, durable=True)
    passing = _measure_blocks(folder / "fast", chain, num_models, durable=False)
    return [
        _row("write, durable", model_mb, num_models, lasting.write_ms, lasting.write_floor_ms),
        _row("write, not durable", model_mb, num_models, passing.write_ms, passing.write_floor_ms),
        _row("read", model_mb, num_models, lasting.read_ms, lasting.read_floor_ms),
    ]


@dataclass(frozen=True)
class _Times:
    """One for each block."""

    write_ms: list[float] = field(default_factory=list)
    write_floor_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    read_floor_ms: list[float] = field(default_factory=list)


def _measure_blocks(folder: Path, chain: SampleChain, num_models: int, *, durable: bool) -> _Times:
    times = _Times()
    floor = folder / "floor"
    floor.mkdir(parents=True)
    with ChainStore.create(folder / "chain", chain.genesis, chain.initial_model, durable=durable) as store:
        for stage in chain.stages:
            num_before = len(stage.blobs) - num_models  # the global model is the last
            blobs = list(stage.blobs.items())
            for blob, data in blobs[:num_before]:
                store.put_blob(blob, data)
            models = dict(blobs[num_before:])
            times.write_ms.append(_time_ms(partial(_keep, store, stage, models)))
            times.write_floor_ms.append(_time_ms(partial(_write_bare, floor, stage, models, durable)))
            times.read_ms.append(_time_ms(partial(_read, store, models)))
            times.read_floor_ms.append(_time_ms(partial(_read_bare, floor, models)))
    return times


def _row(what: str, model_mb: float, models: int, store_ms: list[float], floor_ms: list[float]) -> StoreRow:
    ratio = median(store / floor for store, floor in zip(store_ms, floor_ms, strict=True))
    return StoreRow(what, model_mb, models, median(store_ms), median(floor_ms), ratio)


def _keep(store: ChainStore, stage: Stage, models: dict[bytes, bytes]) -> None:
    for blob, data in models.items():
        store.put_blob(blob, data)
    store.append(stage.block, stage.certificate)


def _read(store: ChainStore, models: dict[bytes, bytes]) -> None:
    for blob in models:
        store.get_blob(blob)


def _read_bare(folder: Path, models: dict[bytes, bytes]) -> None:
    for blob in models:
        digest((folder / blob.hex()).read_bytes())


def _write_bare(folder: Path, stage: Stage, models: dict[bytes, bytes], durable: bool) -> None:
    for blob, data in models.items():
        _write(folder / blob.hex(), "wb", data, durable)
        if durable:
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    _write(folder / "log", "ab", encode(stage.block), durable)


def _write(path: Path, mode: str, data: bytes, durable: bool) -> None:
    with path.open(mode) as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def _time_ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - start)
