"""What a table shows: the right axis, the right lines, means and intervals by an independent oracle."""

import numpy as np
import pytest
from scipy import stats

from bdfl.report.style import save_sheet
from bdfl.report.sweep import draw_sweep, show_interval, tabulate_summary
from bdfl.sweeps.plan import Mode, Origin
from bdfl.sweeps.results import InvalidPlot, PointTable, summarise_points


def make_table(varied, *, schedulers=("drc", "exact:tradeoff=50"), seeds=4, origin=Origin.GRID, failed=()):
    """Every combination of the values in `varied`; delays are drawn."""
    rng = np.random.default_rng(7)
    combinations = [()]
    for values in varied.values():
        combinations = [(*before, value) for before in combinations for value in values]
    rows = [(*values, choice, seed) for values in combinations for choice in schedulers for seed in range(seeds)]
    columns = {key: [row[place] for row in rows] for place, key in enumerate((*varied, "scheduler", "seed"))}
    delay_s = [None if place in failed else float(rng.random()) for place in range(len(rows))]
    columns |= {
        "point": [str(place) for place in range(len(rows))],
        "status": ["failed" if place in failed else "ok" for place in range(len(rows))],
        "error": [None] * len(rows),
        "mean_delay_s": delay_s,
        "worst_shortfall": [0.1] * len(rows),
    }
    return PointTable(
        name="made",
        mode=Mode.SIMULATE,
        varied=dict.fromkeys(varied, origin),
        measures=("mean_delay_s", "worst_shortfall"),
        columns=columns,
    )


def test_means_and_intervals_are_those_of_students_t():
    table = make_table({"energy.budget_j": [0.2, 0.4, 0.8]}, failed=(1,))
    summary = summarise_points(table)
    assert (summary.x, summary.by, summary.pooled) == ("energy.budget_j", ["scheduler"], [])
    assert summary.num_failed == 1
    for line, choice in zip(summary.lines, ("drc", "exact:tradeoff=50"), strict=True):
        assert line.settings == {"scheduler": choice}
        for place in line.places:
            values = [
                delay_s
                for delay_s, x, own in zip(
                    *(table.columns[key] for key in ("mean_delay_s", "energy.budget_j", "scheduler")), strict=True
                )
                if (x, own) == (place.x, choice) and delay_s is not None
            ]
            low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
            found = place.measures["mean_delay_s"]
            assert (found.mean, 2 * found.half_width) == pytest.approx((np.mean(values), high - low))


def test_the_key_with_most_values_is_the_axis_and_others_make_lines():
    summary = summarise_points(make_table({"clients.count": [4, 8], "radio.bandwidth_hz": [1e4, 1e5, 1e6]}))
    assert (summary.x, summary.by) == ("radio.bandwidth_hz", ["scheduler", "clients.count"])
    assert summary.is_logarithmic
    assert len(summary.lines) == 4
    words = summarise_points(make_table({"radio.fading.kind": ["none", "rician"], "clients.count": [4, 8]}))
    assert words.x == "clients.count"
    assert summarise_points(make_table({})).x == "scheduler"


def test_random_draws_are_not_connected_and_other_draws_not_mixed_up():
    summary = summarise_points(make_table({"energy.budget_j": [0.3, 0.25, 0.7]}, origin=Origin.RANDOM))
    assert not summary.is_connected
    assert [place.x for place in summary.lines[0].places] == [0.25, 0.3, 0.7]


def test_what_is_asked_for_is_shown():
    table = make_table({"clients.count": [4, 8], "energy.budget_j": [0.2, 0.4, 0.8]})
    summary = summarise_points(
        table, x="clients.count", by=[], measures=["worst_shortfall"], where={"scheduler": "drc"}, logarithmic=True
    )
    assert summary.pooled == ["energy.budget_j"]
    assert [place.num_points for place in summary.lines[0].places] == [12, 12]
    assert summary.measures == ["worst_shortfall"]
    assert summary.is_logarithmic


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"x": "radio.power_w"}, "x: 'radio.power_w' given, allowed: energy.budget_j, scheduler"),
        ({"measures": ["mean_gap"]}, "y: 'mean_gap' given"),
        ({"where": {"energy.budget_j": "7"}}, "where: energy.budget_j is nowhere '7', there are 0.2, 0.4"),
        ({"x": "scheduler", "by": ["energy.budget_j"]}, "40 lines for energy.budget_j, at most 12 expected"),
    ],
)
def test_what_a_table_cannot_show_is_told_in_one_line(options, expected):
    values = [0.2, 0.4, *range(1, 39)] if "x" in options and options["x"] == "scheduler" else [0.2, 0.4]
    with pytest.raises(InvalidPlot) as caught:
        summarise_points(make_table({"energy.budget_j": values}), **options)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    "made",
    [
        make_table({"energy.budget_j": [0.2, 0.4, 0.8], "clients.count": [4, 8, 9, 10]}),
        make_table({"radio.fading.kind": ["none", "rician"]}, seeds=1),
        make_table({"energy.budget_j": [0.3, 0.25, 0.7]}, origin=Origin.RANDOM, failed=(0, 5)),
    ],
    ids=["lines", "words", "draws"],
)
def test_a_figure_is_the_same_every_time_and_its_numbers_are_beside_it(tmp_path, made):
    summary = summarise_points(made)
    picture = draw_sweep(summary)
    assert picture.svg.startswith(b"<?xml")
    if not summary.is_numeric:  # one is enough to see it
        assert picture.svg == draw_sweep(summary).svg
    path = save_sheet(picture.sheets[0], tmp_path / "plot.csv")
    num_places = sum(len(line.places) for line in summary.lines)
    assert len(path.read_text().splitlines()) == 1 + num_places * len(summary.measures)
    assert sum(table.row_count for table in tabulate_summary(summary)) == num_places


def test_intervals_are_short():
    from bdfl.experiment import Interval

    nan = float("nan")
    assert show_interval(Interval(1.23456, 0.0123)) == "1.235 ± 0.012"
    assert (show_interval(Interval(2.0, nan)), show_interval(Interval(nan, nan))) == ("2", "-")
    assert show_interval(Interval(1.0, 4e-16)) == "1 ± 0"
