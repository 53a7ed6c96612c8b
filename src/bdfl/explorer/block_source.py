"""Sources of blocks (a store, a status server), and the check of blocks and signatures, one by one.

The checks find a changed block at its own height: its row, its encoding, its parent, the root of its body, its proof
of work if cheap to check, and the block its certificate's votes are for. A separate process checks its signature, see
`ask_for_forgeries`. `bdfl chain verify` checks all other rules.
"""

import http.client
import os
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from bdfl.addresses import split_address
from bdfl.encoding import BadEncoding, encode
from bdfl.errors import BdflError, one_line
from bdfl.identity import Meaning, is_signed, statement_digest
from bdfl.ledger.block import MAX_BLOCK_SIZE, Block, Certificate, Genesis, Seal, body_root, chain_id, header_seal
from bdfl.ledger.member_set import BINDS_AFTER, MemberSet, find_change, first_member_set
from bdfl.ledger.proof_of_work import is_worked
from bdfl.ledger.sqlite_store import DATABASE_FILE, ChainStore
from bdfl.ledger.sqlite_tables import decode_certificate, decode_stored
from bdfl.ledger.store import DamagedStore, NotAStore, StoreError
from bdfl.node.status import query_status
from bdfl.processes import ChildProcess, serve_requests
from bdfl.scenario.schema_learning import WorkKind


@dataclass(frozen=True)
class Stored:
    """Bytes of a block and its certificate; `damage` describes damage to their row in the store."""

    block: bytes
    certificate: bytes
    damage: str | None = None


@dataclass(frozen=True)
class Found:
    """A block as read; `problem` is the reason why it is invalid."""

    height: int
    block: Block | None  # none: it cannot be read
    certificate: Certificate
    problem: str | None
    size_bytes: int | None


def find_block(source: "BlockSource", height: int) -> Found:
    """Read and decode the block at a height."""
    try:
        stored = source.read(height)
    except StoreError as error:
        return Found(height, None, (), one_line(error), None)
    size_bytes = len(stored.block)
    try:
        block = decode_stored(stored.block, Block)
    except BadEncoding as error:
        return Found(height, None, (), stored.damage or one_line(error), size_bytes)
    try:
        certificate = decode_certificate(stored.certificate)
    except BadEncoding as error:
        return Found(height, block, (), stored.damage or f"its certificate: {one_line(error)}", size_bytes)
    return Found(height, block, certificate, stored.damage, size_bytes)


def find_problem(found: Found, genesis: Genesis, roll: MemberSet, parent: bytes | None) -> str | None:
    """Return a block's problem, signature aside; `parent` is the digest of the block before, None if it is invalid."""
    block = found.block
    if found.problem is not None or block is None:
        return found.problem
    header, chain = block.header, chain_id(genesis)
    if header.chain != chain:
        return f"it belongs to chain {header.chain.hex()[:12]}, {chain.hex()[:12]} expected"
    if header.height != found.height:
        return f"it says that it is block {header.height}"
    if parent is not None and header.parent != parent:
        return f"its parent is {header.parent.hex()[:12]}, but the block before it is {parent.hex()[:12]}"
    if header.body != body_root(block.body):
        return "its body is not the one that its header names: something in it was changed"
    if not header.proposer < len(roll.members):
        return f"its proposer, {header.proposer}, is no member"
    kind = genesis.law.work
    if kind is WorkKind.SHA256 and not is_worked(kind, header_seal(header), block.nonce, header.difficulty):
        return "its proof of work is false: the hash is above the target"
    digest = block.digest
    if any(signed.vote.block != digest for signed in found.certificate):
        return "its certificate has votes for another block"
    return None


def find_forgery(found: Found, roll: MemberSet) -> str | None:
    """Return a problem unless a block is signed by its proposer; the signature covers all of its contents."""
    block = found.block
    if block is None or not block.header.proposer < len(roll.members):
        return None
    header = block.header
    statement = statement_digest(Meaning.BLOCK, header.place, encode(Seal(header, block.nonce)))
    if is_signed(roll.members[header.proposer].public_key, block.signature, statement):
        return None
    return f"its signature is not that of its proposer, client {header.proposer}"


# Sources of blocks: a store in a folder, which another process may write to, or the status server of a live node.

_PATIENCE_S = 2.0
_PAIR = msgspec.msgpack.Decoder(tuple[bytes, bytes])


class Unreachable(StoreError):
    """A node's status server that does not answer."""


class StoreSource:
    """The chain in a folder; reopened if the file was replaced."""

    def __init__(self, path: Path) -> None:
        self.folder = path
        self._turn = threading.Lock()
        self._store, self._file = self._open()
        self.genesis: Genesis = self._store.genesis

    def close(self) -> None:
        with self._turn:
            self._store.close()

    def height(self) -> int:
        with self._turn:
            self._follow()
            return self._store.height

    def read(self, height: int) -> Stored:
        with self._turn:
            try:
                block, certificate = self._store.raw_block(height)
            except IndexError as error:
                raise NotAStore(f"block {height} is missing") from error
            except StoreError as error:
                raise type(error)(self._bare(error)) from None
            try:
                self._store.certificate(height)
            except StoreError as error:
                return Stored(block, certificate, self._bare(error))
            return Stored(block, certificate)

    def _open(self) -> tuple[ChainStore, tuple[int, int]]:
        file = _identity(self.folder / DATABASE_FILE)
        return ChainStore.open(self.folder, read_only=True), file

    def _follow(self) -> None:
        """Reopen the file if it was replaced; raise `StoreError` if it is missing or of another chain."""
        file = _identity(self.folder / DATABASE_FILE)
        if file == self._file:
            return
        store, file = self._open()
        if chain_id(store.genesis) != chain_id(self.genesis):
            store.close()
            raise NotAStore("another chain is in the folder now")
        self._store.close()
        self._store, self._file = store, file

    def _bare(self, error: StoreError) -> str:
        """Return the error without the folder's path, which pages must not reveal."""
        return one_line(error).replace(f"{self.folder}: ", "").replace(f"{self.folder / DATABASE_FILE}: ", "")


class NetworkSource:
    """The chain of a local network: the highest of all its nodes' stores."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._sources: dict[Path, StoreSource] = {}
        self._best: StoreSource | None = None
        self.height()
        self.genesis: Genesis = self.best.genesis

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def height(self) -> int:
        heights = {}
        for path in self._paths:
            try:
                source = self._sources.get(path) or self._sources.setdefault(path, StoreSource(path))
                heights[source] = source.height()
            except StoreError:
                continue  # not started, or gone: use the others
        if not heights:
            raise NotAStore("no node's chain can be read")
        self._best = max(heights, key=lambda source: (heights[source], source is self._best))
        return heights[self._best]

    @property
    def best(self) -> StoreSource:
        assert self._best is not None
        return self._best

    @property
    def folder(self) -> Path:
        return self.best.folder

    def read(self, height: int) -> Stored:
        return self.best.read(height)


class NodeSource:
    """The chain of a live node, read from its status server and not trusted."""

    folder = None

    def __init__(self, address: str) -> None:
        self.address = address
        self._turn = threading.Lock()
        self._connection: http.client.HTTPConnection | None = None
        try:
            self.genesis: Genesis = decode_stored(self._get("/chain/genesis"), Genesis)
        except BadEncoding as error:
            raise DamagedStore(f"{address}: {one_line(error)}, the genesis of a chain expected") from None
        self._chain = chain_id(self.genesis).hex()

    def close(self) -> None:
        with self._turn:
            self._hang_up()

    def height(self) -> int:
        found = query_status(self.address, _PATIENCE_S)
        if found is None:
            raise Unreachable(f"{self.address} does not answer")
        if found.chain != self._chain:
            raise NotAStore(f"{self.address} is on another chain now")
        return found.height

    def read(self, height: int) -> Stored:
        try:
            block, certificate = _PAIR.decode(self._get(f"/chain/blocks/{height}"))
        except msgspec.DecodeError as error:
            raise DamagedStore(f"block {height}: {one_line(error)}, a block and its certificate expected") from None
        return Stored(block, certificate)

    def _get(self, path: str) -> bytes:
        with self._turn:
            for is_last in (False, True):  # retry once: an idle connection may be closed
                try:
                    return self._ask(path)
                except (OSError, http.client.HTTPException) as error:
                    self._hang_up()
                    if is_last:
                        raise Unreachable(f"{self.address}{path}: {one_line(error)}") from None
            raise AssertionError

    def _ask(self, path: str) -> bytes:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*split_address(self.address), timeout=_PATIENCE_S)
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        content = answer.read(2 * MAX_BLOCK_SIZE)
        if answer.will_close or not answer.isclosed():
            self._hang_up()
        if answer.status != http.client.OK:
            raise DamagedStore(f"{self.address}{path}: answered {answer.status}, 200 expected")
        return content

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


# `height` raises `StoreError` if the chain cannot be read any more, `read` if a block cannot. `folder` is the
# chain's; none: not on this machine.
BlockSource: TypeAlias = StoreSource | NetworkSource | NodeSource


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise NotAStore(f"{path.name}: {error.strerror}") from None
    return found.st_dev, found.st_ino


# Check the proposers' signatures of a chain in a separate process, which saves memory in the server.

_MODULE = "bdfl.explorer.block_source"
_CHECK_S = 600.0


class SignatureCheck(msgspec.Struct, frozen=True):
    """Request for the forged blocks among those of a chain in a folder."""

    chain: str
    first: int
    last: int


_CHECKS: msgspec.msgpack.Decoder[SignatureCheck] = msgspec.msgpack.Decoder(SignatureCheck)
_FORGERIES: msgspec.msgpack.Decoder[dict[int, str] | None] = msgspec.msgpack.Decoder(dict[int, str] | None)


def find_forgeries(path: Path, first: int, last: int) -> dict[int, str]:
    """Return the blocks that are not signed by their proposer, by height; unreadable blocks are left out."""
    with closing(StoreSource(path)) as source:
        roll, forged = first_member_set(source.genesis), {}
        for height in range(1, last + 1):
            found = find_block(source, height)
            what = find_forgery(found, roll) if height >= first else None
            if what is not None:
                forged[height] = what
            change = None if found.block is None else find_change(found.block.body.entries)
            if change is not None:
                roll = roll.after(change.change, height + BINDS_AFTER)
        return forged


def ask_for_forgeries(path: Path, first: int, last: int) -> dict[int, str] | None:
    """Run `find_forgeries` in a new process; None if that fails."""
    try:
        with closing(ChildProcess(_MODULE, is_quiet=True)) as child:
            child.wait_ready(_CHECK_S)
            return child.request(SignatureCheck(str(path), first, last), _FORGERIES, _CHECK_S)
    except (OSError, BdflError):
        return None


def _check(request: SignatureCheck) -> dict[int, str] | None:
    try:
        return find_forgeries(Path(request.chain), request.first, request.last)
    except (BdflError, IndexError):
        return None


if __name__ == "__main__":
    serve_requests(_CHECKS, _check)
