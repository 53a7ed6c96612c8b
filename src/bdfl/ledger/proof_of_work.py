"""Proof of work: a nonce whose hash together with a header's digest, the `seal`, is below a target.

The difficulty is the expected number of hashes: the target is 2^256 divided by it. Nonces are counted upwards, so the
same seal and difficulty give the same nonce everywhere.
"""

import hashlib
from collections.abc import Callable, Iterator

from argon2.low_level import Type, hash_secret_raw

from bdfl.encoding import DIGEST_SIZE
from bdfl.ledger.block import NONCE_SIZE
from bdfl.scenario.schema_learning import WorkKind

_NUM_NONCES: int = 256**NONCE_SIZE
_NUM_HASHES: int = 256**DIGEST_SIZE
_LAST_BYTES = tuple(bytes([last]) for last in range(256))

_ARGON2_SALT = b"bdfl/1 proofwork"  # domain separation; nothing secret is hashed
_ARGON2_MEMORY_KIB = 1024
_ARGON2_PASSES = 1
_ARGON2_LANES = 1


def work_hash(kind: WorkKind, seal: bytes, nonce: bytes) -> bytes:
    """The hash that is compared with the target, 32 bytes, read as a big-endian number."""
    match kind:
        case WorkKind.SHA256:
            return hashlib.sha256(seal + nonce).digest()
        case WorkKind.ARGON2ID:
            return _argon2id(seal + nonce)


def highest_hash(difficulty: int) -> bytes:
    """The highest hash below the target, 32 bytes; hashes compare with it as bytes."""
    return (_NUM_HASHES // difficulty - 1).to_bytes(DIGEST_SIZE, "big")


def is_worked(kind: WorkKind, seal: bytes, nonce: bytes, difficulty: int) -> bool:
    """Return whether the nonce's hash is below 2^256 // difficulty."""
    return len(nonce) == NONCE_SIZE and work_hash(kind, seal, nonce) <= highest_hash(difficulty)


def search_nonce(
    kind: WorkKind,
    seal: bytes,
    difficulty: int,
    *,
    first: int = 0,
    is_stopped: Callable[[], bool] | None = None,
) -> bytes | None:
    """The first proof of work from nonce `first` on; none if there is none, or if stopped before.

    `is_stopped` is polled about every half millisecond.
    """
    search = _search_sha256 if kind is WorkKind.SHA256 else _search_argon2id
    highest = highest_hash(difficulty)
    for start in _batch_starts(first, 256 if kind is WorkKind.SHA256 else 1):
        nonce = search(seal, start, highest)
        if nonce is not None:
            return nonce
        if is_stopped is not None and is_stopped():
            return None
    return None


def _batch_starts(first: int, size: int) -> Iterator[int]:
    """First nonces of the batches: `first`, then every multiple of `size`."""
    yield first
    yield from range((first // size + 1) * size, _NUM_NONCES, size)


def _search_sha256(seal: bytes, first: int, highest: bytes) -> bytes | None:
    """The first proof of work among `first` and the later nonces that differ from it in the last byte only."""
    # The batch shares the hash state before the last byte: copying it is cheaper than hashing from the start.
    prefix = first.to_bytes(NONCE_SIZE, "big")[:-1]
    copy_state = hashlib.sha256(seal + prefix).copy
    for last in _LAST_BYTES[first % 256 :]:
        state = copy_state()
        state.update(last)
        if state.digest() <= highest:
            return prefix + last
    return None


def _search_argon2id(seal: bytes, first: int, highest: bytes) -> bytes | None:
    nonce = first.to_bytes(NONCE_SIZE, "big")
    return nonce if _argon2id(seal + nonce) <= highest else None


def _argon2id(data: bytes) -> bytes:
    return hash_secret_raw(data, _ARGON2_SALT, _ARGON2_PASSES, _ARGON2_MEMORY_KIB, _ARGON2_LANES, DIGEST_SIZE, Type.ID)
