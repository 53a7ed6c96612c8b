"""Accuracy curves: the paper's numbers are marks at the end of whole runs and a level beside short ones."""

import numpy as np

from bdfl.reproduce.accuracy import AccuracyCurve, AccuracyPanel, draw_accuracies


def curve(scheduler, accuracy, paper=None):
    points = np.array(accuracy, dtype=np.float64)
    rounds = np.arange(len(points), dtype=np.float64)
    return AccuracyCurve(scheduler, scheduler, rounds, 1.5 * rounds, points, points - 1, points + 1, paper)


def draw(*curves, is_full_length=False, num_seeds=1):
    return draw_accuracies([AccuracyPanel("SVHN", curves, is_full_length, num_seeds)])


def marks(picture):
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for axes in picture.figure.axes
        for line in axes.lines
        if line.get_marker() == "D"
    ]


def test_whole_runs_have_the_papers_end_as_marks():
    picture = draw(curve("drc", [10, 50, 90], (3.2, 91.6)), is_full_length=True)
    assert marks(picture) == [(3.2, 91.6), (2.0, 91.6)]  # by time at the paper's time, by rounds at the last


def test_short_runs_have_no_marks_but_a_level():
    picture = draw(curve("drc", [10, 50], (188.75, 91.6)), curve("random", [10, 40], (219.1, 91.0)))
    assert marks(picture) == []
    texts = [text.get_text() for text in picture.figure.axes[0].get_legend().get_texts()]
    assert texts == ["paper, after a whole run: 91.0 to 91.6 %"]
    assert picture.figure.axes[0].get_xlim() == (0.0, 1.5)  # not stretched to the paper's time


def test_a_line_that_would_hide_another_is_dashed():
    picture = draw(curve("channel-best", [10, 50]), curve("drc", [10, 50]), curve("random", [10, 40]))
    lines = [line for line in picture.figure.axes[1].lines if line.get_marker() == "None"]
    assert [line.is_dashed() for line in lines] == [False, True, False]


def test_bands_only_where_there_are_several_seeds():
    assert len(draw(curve("drc", [10, 50])).figure.axes[0].collections) == 0
    assert len(draw(curve("drc", [10, 50]), num_seeds=3).figure.axes[0].collections) == 1


def test_the_numbers_drawn_are_the_numbers_written():
    rows = draw(curve("drc", [10, 50])).sheets[0].rows
    assert rows == [["SVHN", "drc", 0, 0.0, 10.0, 9.0, 11.0], ["SVHN", "drc", 1, 1.5, 50.0, 49.0, 51.0]]
