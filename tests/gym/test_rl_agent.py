"""The example agent: short, and it runs."""

import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_agent.py"


def test_the_example_is_short_and_leaves_a_figure_of_three_curves(tmp_path, monkeypatch, capsys):
    assert len(EXAMPLE.read_text().splitlines()) <= 30
    monkeypatch.setattr(sys, "argv", ["rl_agent.py", "2", str(tmp_path), "minimal"])
    runpy.run_path(str(EXAMPLE))
    assert {path.name for path in tmp_path.iterdir()} == {"rl-agent.svg", "rl-agent.png", "rl-agent.csv"}
    rows = [line.split(",") for line in (tmp_path / "rl-agent.csv").read_text().splitlines()[1:]]
    assert [(who, run) for who, run, _ in rows] == [(who, run) for who in ("agent", "drc", "exact") for run in "12"]
    values = {(who, run): float(value) for who, run, value in rows}
    assert all(values["exact", run] < values["drc", run] for run in "12")
    assert "rl-agent.svg" in capsys.readouterr().out
