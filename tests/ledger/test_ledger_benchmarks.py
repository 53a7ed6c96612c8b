"""The ledger's benchmarks run and fill their tables; how fast anything is, no test asserts."""

from pathlib import Path

import pytest

from bdfl.ledger.proof_of_work import search_nonce
from bdfl.scenario.schema_learning import WorkKind
from benchmarks.ledger.mining import Plan, find_job, measure_mining, search_bare
from benchmarks.ledger.storing import measure_storing
from benchmarks.results import Result

TINY = Plan({WorkKind.SHA256: 500, WorkKind.ARGON2ID: 4}, turns=1, stops=2, search_s=0.001)


def column(result: Result, name: str) -> list[object]:
    return [row[result.columns.index(name)] for row in result.cells]


@pytest.mark.parametrize("kind", list(WorkKind))
def test_the_bare_loop_finds_what_the_search_finds(kind: WorkKind) -> None:
    job = find_job(kind, 8)
    assert search_bare(job) == search_nonce(kind, job.seal, job.difficulty) == job.nonce


def test_mining_is_measured_for_both_kinds_beside_a_bare_loop() -> None:
    rates, stops = measure_mining(TINY, lambda line: None)
    ratios = list(zip(column(rates, "work"), column(rates, "side"), column(rates, "of_bare"), strict=True))
    assert [row for row in ratios if row[1] == "bare loop"] == [(kind, "bare loop", 1.0) for kind in WorkKind]
    assert len(set(zip(column(stops, "work"), column(stops, "meanwhile"), strict=True))) == 6
    assert all(value > 0 for value in column(stops, "most_worked_ms"))


def test_storing_is_measured_beside_its_floor(tmp_path: Path) -> None:
    [result] = measure_storing(1, lambda line: None, tmp_path)
    assert len(result.cells) == 12
    assert all(value > 0 for name in ("store_ms", "floor_ms", "of_floor") for value in column(result, name))
    assert not list(tmp_path.iterdir())
