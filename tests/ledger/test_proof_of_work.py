"""Proof of work: what is searched is what is checked, and it is as hard as it says."""

import hashlib

import pytest
from argon2.low_level import Type, hash_secret_raw
from hypothesis import given, settings, strategies as st

from bdfl.ledger import proof_of_work
from bdfl.ledger.proof_of_work import highest_hash, is_worked, search_nonce, work_hash
from bdfl.scenario.schema_learning import WorkKind

SEAL = bytes(range(32))
GOLDEN = {
    WorkKind.SHA256: "a9d6e500293a88bd38cbe213d07ab71f8cb2258552072a01bdf1c40be527f4d0",
    WorkKind.ARGON2ID: "9a6bdf096df8393ca63bb39412ae7d809d6a6c12917d051c1486677a55fbe184",
}

kinds = pytest.mark.parametrize("kind", list(WorkKind))
nonces = st.integers(0, 2**64 - 1).map(lambda number: number.to_bytes(8, "big"))
seals = st.binary(min_size=32, max_size=32)


@kinds
def test_a_hash_never_changes(kind: WorkKind) -> None:
    assert work_hash(kind, SEAL, bytes(8)).hex() == GOLDEN[kind]


@given(seal=seals, nonce=nonces)
def test_sha256_hashes_the_seal_and_then_the_nonce(seal: bytes, nonce: bytes) -> None:
    assert work_hash(WorkKind.SHA256, seal, nonce) == hashlib.sha256(seal + nonce).digest()


def test_argon2id_takes_one_pass_over_one_mebibyte() -> None:
    expected = hash_secret_raw(
        SEAL + bytes(8), b"bdfl/1 proofwork", time_cost=1, memory_cost=1024, parallelism=1, hash_len=32, type=Type.ID
    )
    assert work_hash(WorkKind.ARGON2ID, SEAL, bytes(8)) == expected


@given(seal=seals, nonce=nonces, difficulty=st.integers(1, 2**63 - 1) | st.integers(1, 9))
def test_work_is_a_hash_below_the_target(seal: bytes, nonce: bytes, difficulty: int) -> None:
    number = int.from_bytes(work_hash(WorkKind.SHA256, seal, nonce), "big")
    assert is_worked(WorkKind.SHA256, seal, nonce, difficulty) == (number < 2**256 // difficulty)


@given(difficulty=st.integers(1, 2**63 - 1))
def test_the_highest_hash_is_the_last_below_the_target(difficulty: int) -> None:
    assert int.from_bytes(highest_hash(difficulty), "big") == 2**256 // difficulty - 1


def test_the_highest_hash_itself_is_work_and_the_next_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    highest = int.from_bytes(highest_hash(5), "big")
    for number, is_enough in ((highest, True), (highest + 1, False)):
        monkeypatch.setattr(proof_of_work, "work_hash", lambda *_, found=number: found.to_bytes(32, "big"))
        assert is_worked(WorkKind.SHA256, SEAL, bytes(8), 5) is is_enough


@kinds
def test_difficulty_one_takes_any_nonce(kind: WorkKind) -> None:
    assert is_worked(kind, SEAL, b"whatever", 1)
    assert search_nonce(kind, SEAL, 1) == bytes(8)


@pytest.mark.parametrize("nonce", [b"", bytes(7), bytes(9)])
@kinds
def test_a_nonce_of_another_length_is_no_work(kind: WorkKind, nonce: bytes) -> None:
    assert not is_worked(kind, SEAL, nonce, 1)


def _first_worked(kind: WorkKind, seal: bytes, difficulty: int, first: int) -> bytes:
    number = first
    while not is_worked(kind, seal, number.to_bytes(8, "big"), difficulty):
        number += 1
    return number.to_bytes(8, "big")


@settings(max_examples=50)
@given(seal=seals, difficulty=st.integers(1, 2000), first=st.integers(0, 2**63) | st.integers(250, 260))
def test_the_search_finds_the_first_nonce_that_is_worked(seal: bytes, difficulty: int, first: int) -> None:
    found = search_nonce(WorkKind.SHA256, seal, difficulty, first=first)
    assert found == _first_worked(WorkKind.SHA256, seal, difficulty, first)


@pytest.mark.parametrize("first", [0, 7])
def test_the_search_with_argon2id_finds_the_first_nonce_that_is_worked(first: int) -> None:
    kind = WorkKind.ARGON2ID
    assert search_nonce(kind, SEAL, 16, first=first) == _first_worked(kind, SEAL, 16, first)


def test_difficulty_is_the_expected_number_of_hashes() -> None:
    difficulty, num_searches = 64, 400
    counts = []
    for number in range(num_searches):
        nonce = search_nonce(WorkKind.SHA256, hashlib.sha256(bytes([number % 256, number // 256])).digest(), difficulty)
        assert nonce is not None
        counts.append(int.from_bytes(nonce, "big") + 1)
    mean = sum(counts) / num_searches  # of a geometric law: its deviation is 64 / sqrt(400) = 3.2
    assert abs(mean - difficulty) < 4 * 3.2


@kinds
def test_a_search_that_is_told_to_stop_gives_nothing(kind: WorkKind) -> None:
    asked = []

    def is_stopped() -> bool:
        asked.append(1)
        return len(asked) == 3

    assert search_nonce(kind, SEAL, 2**62, is_stopped=is_stopped) is None
    assert len(asked) == 3


def test_the_search_ends_with_the_last_nonce() -> None:
    assert search_nonce(WorkKind.SHA256, SEAL, 2**62, first=2**64 - 300) is None
    assert search_nonce(WorkKind.SHA256, SEAL, 1, first=2**64 - 1) == b"\xff" * 8
    assert search_nonce(WorkKind.ARGON2ID, SEAL, 2**62, first=2**64 - 1) is None
