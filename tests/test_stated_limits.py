"""Numbers that pages state and members, auditors and other verifiers rely on: the code has the very same ones."""

from importlib import import_module
from pathlib import Path

import pytest

from bdfl.ledger import sqlite_database
from bdfl.ledger.block import MAX_BLOCK_SIZE

ROOT = Path(__file__).parents[1]
FORMAT_PAGE, PROTOCOL, SECURITY, CHAIN = (
    "tests/vectors/FORMAT.md",
    "docs/protocol.md",
    "docs/security.md",
    "docs/chain.md",
)

STATED = [
    # Another number would be another format: members with either could not follow each other.
    ("aggregation", "SAMPLES_LIMIT", 2**29, FORMAT_PAGE, "samples below 2^29"),
    ("aggregation", "MAX_GROUPS", 200_000, FORMAT_PAGE, "at most 200,000 ways to choose"),
    ("aggregation", "_DISTANCE_BLOCK", 16_384, FORMAT_PAGE, "blocks of 16,384"),
    ("ledger.block", "FORMAT", 3, FORMAT_PAGE, "format 3 [format]"),
    ("ledger.block", "MAX_BLOCK_SIZE", 67_108_864, FORMAT_PAGE, "67,108,864 bytes"),
    ("ledger.block", "MAX_TIME_MS", 253_402_300_799_999, FORMAT_PAGE, "253402300799999, the end of the year 9999"),
    ("ledger.schedule", "MAX_REST", 63, FORMAT_PAGE, "min(2^misses - 1, 63)"),
    ("ledger.chain", "MEDIAN_BLOCKS", 11, FORMAT_PAGE, "`time_ms` of the last 11 blocks"),
    ("ledger.chain_params", "MAX_MODEL_SIZE", 2**31, FORMAT_PAGE, "a file of these tensors, at most 2^31"),
    ("ledger.costs", "PRECISION", 40, FORMAT_PAGE, "decimal numbers of 40 digits"),
    ("ledger.member_set", "BINDS_AFTER", 2, FORMAT_PAGE, "a change in block h binds from height h + 2 on"),
    ("ledger.costs", "NANO", 10**9, FORMAT_PAGE, "overhead_ns / 10^9"),
    ("ledger.costs", "MICROWATT", 10**6, FORMAT_PAGE, "power_uw / 10^6"),
    ("ledger.costs", "PICOJOULE", 10**12, FORMAT_PAGE, "energy_budget_pj / 10^12"),
    ("ledger.costs", "ATTO", 10**18, FORMAT_PAGE, "gain_atto / 10^18"),
    ("ledger.costs", "NOISE", 10**30, FORMAT_PAGE, "noise / 10^30"),
    ("ledger.costs", "CAPACITANCE", 10**36, FORMAT_PAGE, "capacitance / 10^36"),
    ("ledger.proof_of_work", "_ARGON2_MEMORY_KIB", 1024, CHAIN, "`argon2id` (1 MiB, one pass)"),
    # Members with other numbers would judge otherwise, and wait for each other.
    ("ledger.block", "TIME_TOLERANCE_MS", 60_000, PROTOCOL, "give or take 60 s"),
    ("ledger.chain", "FAREWELL", 64, PROTOCOL, "still answered for 64 heights"),
    ("ledger.schedule", "INTEGER_TOLERANCE", 10**6, PROTOCOL, "all integers agree to 1 ppm"),
    ("ledger.schedule", "OBJECTIVE_TOLERANCE", 10**6, PROTOCOL, "`1e-6 * 2^(attempt - 1) * V * delay`"),
    ("protocol.consensus", "LEADERLESS_ATTEMPTS", 2, PROTOCOL, "The first two attempts also end"),
    ("protocol.deadlines", "LATE_BLOCK_FACTOR", 4, PROTOCOL, "four times as long as the voter waited"),
    ("protocol.deadlines", "MAX_BACK_OFF_NS", 600 * 10**9, PROTOCOL, "ten minutes (`MAX_BACK_OFF_NS`)"),
    ("protocol.deadlines", "REFILL", 4, PROTOCOL, "a quarter of each round's length"),
    ("protocol.entries", "HELD_HEIGHTS", 2, PROTOCOL, "for two heights (`HELD_HEIGHTS`)"),
    ("ledger.genesis", "SIMULATED_TIME_MS", 1_767_225_600_000, PROTOCOL, "founded at the beginning of 2026"),
    # What one height can take is worked out of these.
    ("protocol.consensus", "MAX_VOTES_AHEAD", 16, SECURITY, "`16 n (a + 16) + 2 n`"),
    ("protocol.sync", "MAX_EARLY", 16, SECURITY, "| messages of the next height | `16 n` |"),
    ("protocol.updates", "MAX_BLOBS", 2, SECURITY, "asks for two models of a member"),
    ("protocol.proposals", "MAX_AHEAD", 2, SECURITY, "`2 n (a + 2) + 1`"),
]


@pytest.mark.parametrize(("module", "name", "value", "page", "words"), STATED, ids=lambda one: str(one)[:40])
def test_a_page_and_the_code_state_the_same_number(module, name, value, page, words):
    assert getattr(import_module(f"bdfl.{module}"), name) == value
    assert words in " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_the_largest_block_fits_into_a_row_and_a_row_into_an_answer():
    assert MAX_BLOCK_SIZE < sqlite_database._MAX_VALUE < sqlite_database._MAX_ANSWER // 2
