"""Figures: they show what the records say, infeasible rounds included, and write what they show."""

import csv

import numpy as np
import pytest

from bdfl.experiment import Interval, compare, simulate
from bdfl.report.figures import Curve, Panel, TimePair, draw_comparison, draw_curves, draw_times
from bdfl.report.run_figures import draw_run
from bdfl.report.style import save_picture
from bdfl.scenario import Scenario, override_scenario

STARVED = override_scenario(
    Scenario(name="starved", rounds=12),
    ['energy.budget_j={distribution="choice", values=[0.01, 0.4], weights=[0.5, 0.5], each_round=true}'],
)


pytestmark = pytest.mark.usefixtures("coarse_pictures")


def texts(figure):
    """Every text of a figure, titles and labels included."""
    return [text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text"))]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_is_drawn_with_its_infeasible_rounds_marked(tmp_path):
    record = simulate(STARVED)
    assert 0 < record.num_infeasible < 12
    picture = draw_run(record)
    marks = {artist.get_gid() for artist in picture.figure.findobj() if (artist.get_gid() or "").startswith("infeas")}
    assert marks == {f"infeasible-{round}" for round in record.round[~record.took_place]}
    assert any(f"{record.num_infeasible} infeasible" in text for text in texts(picture.figure))
    files = save_picture(picture, tmp_path, "run")
    assert [path.name for path in files] == ["run.svg", "run.png", "run-rounds.csv", "run-clients.csv"]
    assert all(path.stat().st_size > 500 for path in files)
    rows = rows_of(tmp_path / "run-rounds.csv")
    assert [float(row["delay_s"]) for row in rows] == record.delay_s.tolist()
    assert [float(row["drift_bound"]) for row in rows] == record.drift_bound.tolist()
    assert [row["status"] for row in rows] == [status.value for status in record.status]


def test_a_run_with_many_clients_is_drawn():
    record = simulate(override_scenario(Scenario(name="many", rounds=3), ["clients.count=40"]))
    assert draw_run(record).figure.axes


@pytest.fixture(scope="module")
def comparison():
    choices = ("channel-best", "drc", "exact:tradeoff=50")
    return compare(Scenario(name="small", rounds=5), choices, num_seeds=2, frontier_tradeoffs=(1.0, 10.0), workers=1)


def test_a_comparison_shows_every_scheduler_and_the_bound(comparison, tmp_path):
    picture = draw_comparison(comparison)
    shown = texts(picture.figure)
    assert {"channel-best", "drc", "exact V=50", "lower bound"} <= set(shown)
    files = save_picture(picture, tmp_path, "compare")
    assert all(path.stat().st_size > 50 for path in files)
    means = rows_of(tmp_path / "compare-means.csv")
    assert [row["scheduler"] for row in means] == ["channel-best", "drc", "exact:tradeoff=50", "lower bound"]
    assert float(means[1]["mean_delay_s"]) == comparison.results[1].delay_s.mean
    assert len(rows_of(tmp_path / "compare-frontier.csv")) == 4


def test_a_comparison_says_how_many_rounds_were_infeasible():
    found = compare(STARVED, ("drc",), num_seeds=2, frontier_tradeoffs=(), with_bound=False, workers=1)
    assert any("infeasible" in text for text in texts(draw_comparison(found).figure))


def test_a_comparison_in_which_nothing_took_place_is_drawn():
    starving = override_scenario(Scenario(rounds=3), ["energy.budget_j=0.001"])
    found = compare(starving, ("drc", "random"), num_seeds=2, frontier_tradeoffs=(1.0,), workers=1)
    assert any("infeasible" in text for text in texts(draw_comparison(found).figure))


def test_curves_are_labelled_at_their_ends():
    curves = [Curve("V = 1", "#000000", np.arange(5.0)), Curve("V = 2", "#111111", np.arange(5.0))]
    assert {"V = 1", "V = 2", "title"} <= set(
        texts(draw_curves([Panel("title", curves)], value_label="y", value_column="y").figure)
    )


def test_times_show_the_paper_and_ours():
    pairs = [TimePair("drc", 90.0, Interval(91.0, 0.5)), TimePair("exact", None, Interval(88.0, float("nan")))]
    picture = draw_times([("CIFAR-10", pairs)])
    assert {"paper", "91.0 s", "88.0 s"} <= set(texts(picture.figure))
    assert picture.sheets[0].rows[1][2] == ""
