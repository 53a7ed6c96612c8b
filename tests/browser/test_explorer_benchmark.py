"""The explorer's benchmark runs and fills its tables; how fast anything is, no test asserts."""

import pytest

from benchmarks.explorer import large_folders, speed
from benchmarks.explorer.large_folders import write_long_record
from benchmarks.explorer.speed import Plan, measure_explorer

TINY = Plan(num_blocks=3, num_rounds=3000, openings=1, repeats=1, viewing_s=2.0)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Folders of few clients and rounds, and few viewers."""
    monkeypatch.setattr(large_folders, "NUM_CLIENTS", 12)
    monkeypatch.setattr(large_folders, "_PLAYED_ROUNDS", 100)
    monkeypatch.setattr(speed, "NUM_VIEWERS", 3)
    monkeypatch.setattr(speed, "_WARM_UP_S", 1.0)


@pytest.mark.usefixtures("browser")
def test_a_long_record_has_as_many_rounds_as_asked_for(tmp_path):
    import pyarrow.parquet

    folder = write_long_record(tmp_path / "record", 1500)
    rounds = pyarrow.parquet.read_table(folder / "rounds.parquet", columns=["round"])["round"].to_pylist()
    assert rounds == list(range(1, 1501))


@pytest.mark.usefixtures("browser")
def test_opening_stalls_and_cost_are_measured(browser):
    opening, stalls, cost = measure_explorer(TINY, lambda line: None, browser)
    assert opening.cells[0][opening.columns.index("first_paint_ms")] > 0
    assert [row[0] for row in stalls.cells] == [
        "scroll the ribbon",
        "move the cursor over the curves",
        "zoom into a curve and out again",
        "drag the slider",
    ]
    told = {row[0]: row[1] for row in cost.cells}
    assert told["blocks that the worst viewer was told of meanwhile"] >= 1
