"""Flip single bits of a chain folder, and compare three verifiers that share no code."""

import json
import random
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bdfl.encoding import digest
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.store import StoreError, rested_on
from bdfl.ledger.verify import verify_chain
from tests.vectors.independent_format import Wrong
from tests.vectors.independent_verifier import verify_folder

VERIFIER = Path(__file__).parents[2] / "verifiers" / "node" / "verify.mjs"
MISSING = "no Node.js: `make browser` as root installs it; the verifier in JavaScript is not tried"
_CHECKSUM_LEFT = 0.1  # fraction of changed rows with an outdated checksum
_PARTS = {"block": 0.45, "certificate": 0.2, "blob": 0.25, "genesis": 0.1}


def find_node() -> Path | None:
    """Find Node.js on the path."""
    found = shutil.which("node")
    return None if found is None else Path(found)


@dataclass(frozen=True)
class Verdict:
    """Valid, or the invalid block; 0: the genesis, or an unreadable chain."""

    block: int | None

    def __str__(self) -> str:
        return "valid" if self.block is None else f"wrong in block {self.block}"


class NodeVerifier:
    """The verifier in JavaScript, as one process for many folders."""

    def __init__(self, node: Path) -> None:
        self._process = subprocess.Popen(
            [str(node), str(VERIFIER), "--lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def judge(self, folder: Path) -> Verdict:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        if "error" in found:
            raise RuntimeError(f"{folder}: {found['error']}")
        return Verdict(None if found["valid"] else found["block"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its pipes, which ends it
            pass


def judge_by_bdfl(folder: Path) -> Verdict:
    """Return the verdict of `bdfl chain verify`."""
    try:
        with ChainStore.open(folder, read_only=True) as store:
            failure = verify_chain(store).failure
    except StoreError:
        return Verdict(0)
    return Verdict(None if failure is None else failure.block)


def judge_by_python(folder: Path) -> Verdict:
    """Return the verdict of the Python verifier that imports nothing of bdfl."""
    try:
        verify_folder(folder)
    except Wrong as error:
        return Verdict(getattr(error, "block", 0))
    return Verdict(None)


@dataclass(frozen=True)
class Flip:
    """A bit of a stored genesis, block or certificate, or of a file."""

    part: str
    height: int  # of a block or certificate
    blob: str  # the file's name
    place: int
    bit: int
    with_checksum: bool  # updated after the change

    def __str__(self) -> str:
        where = self.blob[:16] if self.part == "blob" else f"{self.part} {self.height}"
        return f"{where}, byte {self.place}, bit {self.bit}{'' if self.with_checksum else ', checksum left'}"


@dataclass
class Tally:
    """Flips tried on a chain, their verdicts and differences."""

    chain: str
    num_blocks: int
    verdicts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    @property
    def num_flips(self) -> int:
        return self.verdicts.total()


class Specimen:
    """A copy of a chain folder that is modified and restored."""

    def __init__(self, chain: Path, copy: Path, *, is_logged: bool) -> None:
        shutil.copytree(chain, copy)
        self.folder = copy
        with ChainStore.open(copy, read_only=True) as store:
            self.height = store.height
            kept = [use.blob.hex() for height in range(1, self.height + 1) for use in rested_on(store.block(height))]
            initial = store.genesis.model.initial.hex()
        self._blobs = [name for name in dict.fromkeys([initial, *kept]) if self._file(name).is_file()]
        self._database = sqlite3.connect(copy / DATABASE_FILE, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        if is_logged:  # keep changes in the write-ahead log while this connection is open
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA wal_autocheckpoint = 0")

    def close(self) -> None:
        self._database.close()

    def draw(self, source: random.Random) -> Flip:
        """Draw a bit of any part."""
        part = source.choices(list(_PARTS), list(_PARTS.values()))[0]
        height = source.randint(1, self.height)
        blob = source.choice(self._blobs)
        size = self._file(blob).stat().st_size if part == "blob" else len(self._read(part, height))
        is_right = source.random() >= _CHECKSUM_LEFT
        return Flip(part, height, blob if part == "blob" else "", source.randrange(size), source.randrange(8), is_right)

    @contextmanager
    def flipped(self, flip: Flip) -> Iterator[None]:
        """Flip the bit inside the `with` block."""
        if flip.part == "blob":
            path = self._file(flip.blob)
            before = path.read_bytes()
            path.write_bytes(_flip(before, flip))
            try:
                yield
            finally:
                path.write_bytes(before)
            return
        before = self._read(flip.part, flip.height)
        sums = self._sums(flip.height)
        self._write(flip, _flip(before, flip))
        if not flip.with_checksum:
            self._set_sums(flip.height, *sums)
        try:
            yield
        finally:
            self._write(flip, before)
            assert self._sums(flip.height) == sums

    def _file(self, name: str) -> Path:
        return self.folder / "blobs" / name[:2] / name

    def _read(self, part: str, height: int) -> bytes:
        column = "certificate" if part == "certificate" else "data"
        table = "genesis" if part == "genesis" else f"blocks WHERE height = {height}"
        [(data,)] = self._database.execute(f"SELECT {column} FROM {table}")
        return bytes(data)

    def _write(self, flip: Flip, data: bytes) -> None:
        column = "certificate" if flip.part == "certificate" else "data"
        if flip.part == "genesis":
            self._database.execute("UPDATE genesis SET data = ?, checksum = ?", (data, digest(data)))
            return
        self._database.execute(f"UPDATE blocks SET {column} = ? WHERE height = ?", (data, flip.height))
        both = self._read("block", flip.height) + self._read("certificate", flip.height)
        self._database.execute("UPDATE blocks SET checksum = ? WHERE height = ?", (digest(both), flip.height))

    def _sums(self, height: int) -> tuple[bytes, bytes]:
        [(genesis,)] = self._database.execute("SELECT checksum FROM genesis")
        [(block,)] = self._database.execute("SELECT checksum FROM blocks WHERE height = ?", (height,))
        return genesis, block

    def _set_sums(self, height: int, genesis: bytes, block: bytes) -> None:
        self._database.execute("UPDATE genesis SET checksum = ?", (genesis,))
        self._database.execute("UPDATE blocks SET checksum = ? WHERE height = ?", (block, height))


def _flip(data: bytes, flip: Flip) -> bytes:
    changed = bytearray(data)
    changed[flip.place] ^= 1 << flip.bit
    return bytes(changed)


def try_flips(
    name: str, chain: Path, copy: Path, node: NodeVerifier, num_flips: int, seed: int, *, is_logged: bool
) -> Tally:
    """Compare the verdicts on a chain as it is, and with each of so many bits flipped."""
    specimen = Specimen(chain, copy, is_logged=is_logged)
    source = random.Random(f"{name} {seed}")
    tally = Tally(name, specimen.height)

    def compare(what: str, *, is_genesis: bool = False) -> None:
        found = {"bdfl": judge_by_bdfl(copy), "node": node.judge(copy), "python": judge_by_python(copy)}
        # A changed genesis is another chain: invalid at once if it is meaningless, else in block 1. A missing scheduler
        # is not a verdict on the format.
        said = {verdict.block is None if is_genesis else verdict for verdict in found.values()}
        tally.verdicts["valid" if found["bdfl"].block is None else "wrong"] += 1
        if len(said) > 1:
            tally.differences.append(f"{what}: {', '.join(f'{one} {verdict}' for one, verdict in found.items())}")

    try:
        compare("as it is")
        if tally.verdicts["wrong"]:
            tally.differences.append("not valid as it is")
        tally.verdicts.clear()
        for _ in range(num_flips):
            flip = specimen.draw(source)
            with specimen.flipped(flip):
                compare(str(flip), is_genesis=flip.part == "genesis")
    finally:
        specimen.close()
    return tally
