"""What private training spent, in the report: only where training was private."""

from dataclasses import replace

import numpy as np

from bdfl.report.learning_figures import draw_exhibits, show_privacy
from bdfl.report.page import render_report
from bdfl.report.run_report import describe_privacy
from bdfl.scenario import override_scenario


def parts(made):
    return made.run, made.learning, made.scenario


def test_epsilon_is_shown_as_it_grows_and_by_client(learned):
    run, learning, scenario = parts(learned())
    spent = np.cumsum(run.selected, axis=0) * 0.25
    private = replace(learning, epsilon=np.where(run.selected, spent, np.nan))
    scenario = override_scenario(scenario, ["privacy.noise_multiplier=1.0", "learning.engine=loop"])
    exhibit = show_privacy(run, private, scenario)
    rows = exhibit.picture.sheets[0].rows
    assert [row[1] for row in rows] == spent.max(axis=1).tolist()
    assert [row[2] for row in rows] == np.median(spent, axis=1).tolist()
    page = render_report(run, private, scenario, [*draw_exhibits(run, learning, scenario), exhibit])
    assert "What training told of the data" in page
    assert "Epsilon each client has spent, at delta 1e-05" in page
    worst = int(np.argmax(spent[-1]))
    assert (
        describe_privacy(private, scenario) == f"epsilon at most {spent[-1, worst]:.2f} (client {worst}), delta 1e-05"
    )


def test_nothing_is_said_of_privacy_where_there_was_none(learned):
    _, learning, scenario = parts(learned())
    assert describe_privacy(learning, scenario) == ""
    assert not learning.is_private
    assert np.isnan(learning.final_epsilon).all()
