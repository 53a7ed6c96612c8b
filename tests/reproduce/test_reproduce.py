"""Reproduction at toy sizes: what is computed, written and judged, not whether the paper is right."""

from functools import cache
from pathlib import Path

import msgspec
import pytest

from bdfl.experiment import compare, simulate
from bdfl.reproduce import Settings, Target, UnknownTarget, parse_targets, reproduce
from bdfl.reproduce.results import PAPER_TIME_S
from bdfl.scenario import Scenario, load_scenario
from bdfl.scenario.files import find_scenario


@pytest.fixture(scope="module")
def reproduced(coarse_pictures, tmp_path_factory):
    """A function from a target to what eight rounds make of it, once for all tests."""
    return cache(
        lambda target: reproduce(target, Settings(tmp_path_factory.mktemp("out"), num_seeds=1, workers=1, max_rounds=8))
    )


@pytest.mark.parametrize(
    ("target", "stems"),
    [
        (Target.FIG2, {"fig2", "fig2-quarters"}),
        (Target.FIG3, {"fig3a", "fig3b", "fig3-means"}),
        (Target.FIG4, {"fig4", "fig4-quarters"}),
        (Target.TABLE4, {"table4", "table4-times", "table4-exact", "table4-savings"}),
    ],
)
def test_every_target_writes_its_pictures_and_numbers_and_is_judged(target, stems, reproduced):
    found = reproduced(target)
    files = [Path(file) for file in found.files]
    assert {file.stem for file in files} == stems
    assert all(file.stat().st_size > 0 for file in files)
    assert {".svg", ".png", ".csv"} == {file.suffix for file in files}
    assert found.verdicts
    assert all(table.rows and all(len(row) == len(table.header) for row in table.rows) for table in found.tables)


def test_table_four_sets_our_times_beside_the_papers_and_both_readings_beside_its_drc(reproduced):
    times = reproduced(Target.TABLE4).tables[0]
    expected = [time for of_data in PAPER_TIME_S.values() for time in (*of_data.values(), of_data["drc"])]
    assert [row[2] for row in times.rows] == expected
    assert [row[1] for row in times.rows[3:5]] == ["drc", "drc idle_mining=full"]
    assert all(full[3] < reserved[3] for reserved, full in (times.rows[3:5], times.rows[8:10]))


def test_what_exact_and_steady_save_is_what_allocating_and_choosing_save(reproduced):
    for _, name, below, allocating, choosing in reproduced(Target.TABLE4).tables[2].rows:
        assert below == pytest.approx(allocating + choosing)
        assert choosing == 0.0 or name.startswith(("exact", "steady"))


def test_all_clients_are_at_the_limit_of_figure_three_if_idle_ones_mine_in_full(reproduced):
    found = reproduced(Target.FIG3)
    assert {row[1] for row in found.tables[0].rows} == {"reserved", "full"}
    for _, reading, *_, share in found.tables[0].rows:
        assert share == pytest.approx(100.0) if reading == "full" else share < 80.0
    assert [verdict.holds for verdict in found.verdicts[-2:]] == [False, True]


def test_eight_rounds_are_not_the_papers_times(reproduced):
    verdicts = {verdict.claim: verdict.holds for verdict in reproduced(Target.TABLE4).verdicts}
    assert not verdicts["SVHN: all 4 times within 3 % of the paper's"]


@pytest.mark.parametrize("name", ["paper-cifar10", "paper-svhn"])
def test_what_is_learned_changes_no_delay_and_is_not_loaded(name, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("data were loaded")

    monkeypatch.setattr("bdfl.learning.data.load_data", refuse)
    monkeypatch.setattr("bdfl.experiment.training_run.load_data", refuse)
    monkeypatch.setattr("bdfl.learning.image_files.load_hub", refuse)
    path, without = find_scenario(name), Scenario()
    shipped = load_scenario(path, ["rounds=12"])
    plain = msgspec.structs.replace(shipped, data=without.data, learning=without.learning)
    assert simulate(shipped).delay_s.tolist() == simulate(plain).delay_s.tolist()
    compare(shipped, ("random", "drc"), num_seeds=1, frontier_tradeoffs=(), workers=1)


def test_targets_are_one_or_all():
    assert parse_targets("all") == list(Target)
    assert parse_targets("fig2") == [Target.FIG2]
    with pytest.raises(UnknownTarget, match="'fig9' given, allowed are fig2, fig3, fig4, table4 and all"):
        parse_targets("fig9")
