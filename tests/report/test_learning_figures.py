"""Figures of a run that learned: they show what the records say, gaps and failures included."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bdfl.experiment.bounds import estimate_convergence
from bdfl.experiment.statistics import cumulative_delay, is_below_rate, is_overdrawn
from bdfl.report.cost_figures import show_energy, show_participation, show_schedule
from bdfl.report.learning_figures import (
    draw_exhibits,
    mean_local_loss,
    show_convergence,
    show_learning_over_rounds,
    show_learning_over_time,
    show_recall,
)
from bdfl.report.style import drawable, house_style, label_ends, new_figure, save_picture

STARVED = 'energy.budget_j={distribution="choice", values=[0.01, 0.4], weights=[0.5, 0.5], each_round=true}'
NAMES = ("learning-rounds", "learning-seconds", "recall", "delay", "energy", "backlog", "stability", "participation",
         "schedule", "convergence")  # fmt: skip


def texts(figure):
    return [text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text"))]


def marks(figure, start):
    return {artist.get_gid() for artist in figure.findobj() if (artist.get_gid() or "").startswith(start)}


@pytest.mark.usefixtures("coarse_pictures")
def test_all_figures_are_drawn_saved_and_written_with_their_numbers(learned, tmp_path):
    made = learned("rounds=5")
    exhibits = draw_exhibits(made.run, made.learning, made.scenario)
    assert tuple(exhibit.name for exhibit in exhibits) == NAMES
    for exhibit in exhibits:
        assert exhibit.heading
        assert exhibit.caption.endswith(".")
        assert exhibit.description.endswith(".")
        files = save_picture(exhibit.picture, tmp_path, exhibit.name)
        assert [path.suffix for path in files] == [".svg", ".png", ".csv"]
    with (tmp_path / "learning-rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy"]) for row in rows] == [0.1, *made.learning.accuracy]
    assert [float(row["simulated_s"]) for row in rows] == [0.0, *cumulative_delay(made.run)]


@pytest.mark.parametrize(
    "changes",
    [
        ["rounds=1"],
        ["rounds=300", "clients.count=30"],
        ["rounds=4", "clients.count=1000"],
        ["rounds=3", "energy.budget_j=0.001"],
    ],
    ids=["one round", "300 rounds, 30 clients", "1,000 clients", "no round took place"],
)
def test_any_size_of_run_is_drawn(learned, changes):
    made = learned(*changes)
    for exhibit in draw_exhibits(made.run, made.learning, made.scenario):
        assert len(exhibit.picture.svg) > 5_000


def test_infeasible_rounds_and_diverged_updates_are_marked(learned):
    made = learned("rounds=12", STARVED, diverged=[(1, client) for client in range(8)])
    assert 0 < made.run.num_infeasible < 12
    exhibit = show_learning_over_rounds(made.run, made.learning)
    missed = {f"infeasible-{round}" for round in made.run.round[~made.run.took_place]}
    assert marks(exhibit.picture.figure, "infeasible") == missed
    assert marks(exhibit.picture.figure, "diverged") == {"diverged"}
    assert "diverged" in exhibit.caption
    assert "infeasible" in exhibit.caption
    image = show_schedule(made.run).picture.figure.axes[0].images[0].get_array()
    red = np.asarray(image)[:, 0, 0] > 0.5  # first round, red channel
    assert red.tolist() == made.run.selected[0].tolist()


def test_lines_pass_over_rounds_without_evaluation(learned):
    made = learned("rounds=10", evaluate_every=4)
    accuracy = show_learning_over_time(made.run, made.learning).picture.figure.axes[0].lines[0]
    assert np.isfinite(accuracy.get_ydata()).all()
    assert accuracy.get_xdata().tolist() == [0.0, *cumulative_delay(made.run)[[3, 7, 9]]]


def test_recall_is_held_until_the_next_evaluation_and_blank_before_the_first(learned):
    made = learned("rounds=7", evaluate_every=3)
    exhibit = show_recall(made.run, made.learning)
    alpha = np.asarray(exhibit.picture.figure.axes[0].images[0].get_array())[..., 3]  # (labels, rounds)
    assert np.all(alpha[:, :2] == 0)
    assert np.all(alpha[:, 2:] >= 0.1)
    assert np.array_equal(alpha[:, 2], alpha[:, 4])
    assert {row[0] for row in exhibit.picture.sheets[0].rows} == {3, 6, 7}


def test_a_run_that_was_never_evaluated_says_so(learned):
    made = learned("rounds=3", evaluate_every=0)
    assert "no evaluation gave a number" in texts(show_learning_over_rounds(made.run, made.learning).picture.figure)
    assert "never evaluated" in texts(show_recall(made.run, made.learning).picture.figure)


def test_losses_of_very_different_size_are_drawn_on_a_logarithmic_axis(learned):
    made = learned("rounds=5")
    wild = replace(made.learning, loss=np.array([2.0, 1e30, np.nan, 3.0, 0.0]))
    assert show_learning_over_rounds(made.run, wild).picture.figure.axes[1].get_yscale() == "log"


def test_mean_local_loss_is_over_those_who_have_one(learned):
    made = learned("rounds=3", diverged=[(1, client) for client in range(8)])
    found = mean_local_loss(made.learning)
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(np.nanmean(made.learning.local_loss[1]))


def test_clients_below_their_rate_are_red_and_named_in_words(learned):
    made = learned("rounds=12", diverged=[(round, 0) for round in range(1, 13)])
    assert is_below_rate(made.run)[0]
    exhibit = show_participation(made.run)
    assert "below its rate" in texts(exhibit.picture.figure)
    assert "1 of 8 clients" in exhibit.description or "of 8 clients are" in exhibit.description
    assert exhibit.picture.sheets[0].rows[0][3] == pytest.approx(12 * made.run.participation_rate[0])


def test_less_than_a_whole_round_owed_is_not_below_the_rate(learned):
    assert not is_below_rate(learned("rounds=1").run).any()


def test_an_overdrawn_budget_is_shown(learned):
    run = learned("rounds=4").run
    mining_j = run.mining_j.copy()
    mining_j[2, 3] += 1.0
    overdrawn = replace(run, mining_j=mining_j)
    assert np.flatnonzero(is_overdrawn(overdrawn)).tolist() == [3]
    assert not is_overdrawn(run).any()
    assert "overdrawn" in texts(show_energy(overdrawn).picture.figure)
    assert "overdrawn" not in texts(show_energy(run).picture.figure)


def test_lemmas_1_and_2_are_drawn_on_a_logarithmic_axis_with_every_term_in_the_sheet(learned):
    made = learned("rounds=6", gradient_every=2)
    estimate = estimate_convergence(made.run, made.learning, made.scenario)
    exhibit = show_convergence(estimate)
    assert exhibit.picture.figure.axes[0].get_yscale() == "log"
    expected = {"measured mean", "Lemma 1, beta", "Lemma 1, achieved", "Lemma 2", "1/T term", "G²"}
    assert expected <= set(texts(exhibit.picture.figure))
    header, rows = exhibit.picture.sheets[0].header, exhibit.picture.sheets[0].rows
    last = dict(zip(header, rows[-1], strict=True))
    assert last["owed_total"] == estimate.owed[-1].total
    assert last["achieved_absence"] == estimate.achieved[-1].absence
    assert last["weighted_local_drift"] == estimate.weighted[-1].local_drift
    assert last["measured_mean"] == estimate.measured[-1]


def test_without_measured_gradients_there_is_no_figure_of_lemma_1(learned):
    made = learned("rounds=2", gradient_every=0)
    assert "convergence" not in [exhibit.name for exhibit in draw_exhibits(made.run, made.learning, made.scenario)]


def test_any_names_of_labels_are_drawn(learned):
    names = ["$x^{$", "<b>&", "日本", "x" * 80, "", "\x00", r"\frac", "-- >", "é", "9"]
    made = learned("rounds=3", names=names)
    exhibit = show_recall(made.run, made.learning)
    assert len(exhibit.picture.svg) > 5_000
    shown = texts(exhibit.picture.figure)
    assert {"label 2", "label 4", "label 5", "é"} <= set(shown)


def test_words_are_cut_and_never_read_as_a_formula():
    assert drawable("a$b$", otherwise="?") == r"a\$b\$"
    assert drawable("abcdef", otherwise="?", longest=4) == "abc…"
    assert drawable(" ", otherwise="?") == "?"


def test_labels_at_the_ends_of_lines_stand_at_their_height_on_a_logarithmic_axis():
    with house_style():
        axes = new_figure(4, 3).subplots()
        axes.set_yscale("log")
        axes.set_ylim(1e-2, 1e2)
        axes.set_xlim(0, 10)
        label_ends(axes, [(10, 1.0, "middle", "#000000")])
    assert axes.texts[0].xyann[1] == pytest.approx(1.0)


def test_in_the_figure_of_the_theory_page_no_lemma_is_exceeded_and_the_page_has_its_numbers():
    docs = Path(__file__).parents[2] / "docs"
    with (docs / "figures" / "convergence.csv").open(encoding="utf-8", newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    for kind in ("owed", "achieved", "weighted"):
        assert all(row["measured_mean"] <= row[f"{kind}_total"] for row in rows)
    last, page = rows[-1], (docs / "theory.md").read_text(encoding="utf-8")
    said = (last["weighted_total"], last["achieved_total"], last["measured_mean"])
    assert "Lemma 2 gives {:.1f}, Lemma 1 {:.1f}".format(*said) in page
    assert f"measured mean {said[2]:.2f}." in " ".join(page.split())
