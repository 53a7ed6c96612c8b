"""Commands: JSON for machines, tables for people, and every mistake in one line with exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bdfl import __version__
from bdfl.cli import app
from tests.experiment.round_json import CLIENT, PROBLEM

pytestmark = pytest.mark.usefixtures("elsewhere", "coarse_pictures")


@pytest.fixture
def problem_file(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    return str(path)


def run(*arguments, stdin=None):
    return CliRunner().invoke(app, list(arguments), input=stdin)


def answer_of(*arguments, stdin=None):
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# solve


@pytest.mark.parametrize("scheduler", ["random", "round-robin", "channel-best", "all", "drc", "exact", "exact-power"])
def test_solve_answers_in_the_published_shape(scheduler, problem_file):
    answer = answer_of("solve", problem_file, "--scheduler", scheduler)
    assert list(answer) == [
        "status", "selected", "cpu_hz", "mining_hz", "power_w", "energy_j", "delay_s", "mining_s", "objective", "gap",
    ]  # fmt: skip
    assert answer["status"] in ("optimal", "feasible")
    assert all(len(answer[key]) == 5 for key in ("cpu_hz", "mining_hz", "power_w", "energy_j"))


def test_solve_reads_standard_input_and_json_is_its_default(problem_file):
    from_file = answer_of("solve", problem_file, "--scheduler", "drc", "--json")
    assert answer_of("solve", "-", "--scheduler", "drc", stdin=json.dumps(PROBLEM)) == from_file


def test_solve_passes_parameters_on(problem_file):
    assert answer_of("solve", problem_file, "--scheduler", "drc", "--parameter", "max_iterations=1")["delay_s"] > 0


def test_solve_can_show_a_table(problem_file):
    assert "exact: optimal" in run("solve", problem_file, "--table").stdout


def test_an_infeasible_round_is_an_answer_and_not_an_error():
    starving = PROBLEM | {"clients": [CLIENT | {"energy_budget_j": 0.0}] * 3}
    answer = answer_of("solve", "-", stdin=json.dumps(starving))
    assert answer["status"] == "infeasible"
    assert answer["reason"]


# simulate, compare, bound, reproduce


def test_simulate_shows_tables_and_writes_figures():
    result = run("simulate", "minimal")
    assert result.exit_code == 0
    assert "who trained" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert {path.suffix for path in Path("results").iterdir()} == {".svg", ".png", ".csv"}


def test_simulate_gives_the_whole_run_as_json_and_writes_nothing():
    document = answer_of("simulate", "minimal", "--json", "--scheduler", "exact:tradeoff=5", "--rounds", "3")
    assert len(document["rounds"]) == 3
    assert (document["scheduler"], document["tradeoff"]) == ("exact", 5.0)
    assert not Path("results").exists()


def test_set_changes_a_value_and_seed_the_draws():
    narrow = answer_of("simulate", "minimal", "--json", "--set", "radio.bandwidth_hz=90e3")
    wide = answer_of("simulate", "minimal", "--json")
    other = answer_of("simulate", "minimal", "--json", "--seed", "5")
    assert narrow["summary"]["mean_delay_s"] > wide["summary"]["mean_delay_s"] != other["summary"]["mean_delay_s"]


def test_compare_ends_in_a_table_and_a_figure():
    result = run(
        "compare", "minimal", "--schedulers", "random,drc,exact:tradeoff=50", "--seeds", "2", "--rounds", "4",
        "--workers", "1", "--out", "pictures",
    )  # fmt: skip
    assert result.exit_code == 0
    assert "lower bound" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert Path("pictures/compare-minimal.png").stat().st_size > 1000


def test_compare_gives_json_with_intervals_and_every_seed():
    document = answer_of(
        "compare", "minimal", "--schedulers", "random,drc", "--seeds", "2", "--workers", "1", "--no-frontier", "--json"
    )
    assert [result["scheduler"] for result in document["results"]] == ["random", "drc"]
    assert set(document["results"][1]["total_s"]) == {"mean", "half_width"}
    assert len(document["results"][1]["per_seed"]) == 2
    assert document["bound"]["mean"] > 0


def test_bound_is_below_what_exact_achieves():
    found = answer_of("bound", "minimal", "--json", "--rounds", "20")
    achieved = answer_of("simulate", "minimal", "--scheduler", "exact", "--rounds", "20", "--json")
    assert 0 < found["confident_s"] < found["bound_s"] < achieved["summary"]["mean_delay_s"]
    assert "standard error" in run("bound", "minimal").stdout


def test_reproduce_prints_verdicts(monkeypatch):
    monkeypatch.setattr("bdfl.reproduce.figures.DATA_SETS", ("cifar10", "cifar10"))
    result = run("reproduce", "fig4", "--seeds", "1", "--workers", "1", "--out", "here")
    assert result.exit_code == 0
    assert "holds" in result.stdout
    assert "Calibrated, not in the paper: participation.mean" in result.stdout
    assert Path("here/fig4.svg").exists()


# scenario, schedulers


def test_scenario_show_prints_values_with_their_sources():
    text = run("scenario", "show", "paper-cifar10").stdout
    assert "bandwidth_hz" in text
    assert "calibrated" in text
    assert "bandwidth B" in run("scenario", "show", "minimal", "--explain").stdout
    rows = answer_of("scenario", "show", "minimal", "--json")
    assert {"key", "value", "unit", "default", "source", "meaning"} == set(rows[0])


def test_a_shown_scenario_can_be_used_as_a_file():
    Path("mine.toml").write_text(run("scenario", "show", "minimal", "--toml").stdout)
    assert (
        answer_of("simulate", "mine.toml", "--json")["rounds"] == answer_of("simulate", "minimal", "--json")["rounds"]
    )


def test_shipped_scenarios_are_listed():
    assert {"paper-cifar10", "paper-svhn", "minimal"} <= set(answer_of("scenario", "list", "--json"))
    assert "minimal" in run("scenario", "list").stdout


def test_schedulers_are_listed_with_their_parameters():
    assert "max_iterations" in run("schedulers").stdout
    listed = answer_of("schedulers", "--json")
    assert {"random", "round-robin", "channel-best", "all", "drc", "exact", "exact-power"} <= set(listed)


def test_a_scheduler_can_be_checked():
    result = run("schedulers", "check", "drc", "--rounds", "20")
    assert result.exit_code == 0
    assert result.stdout.startswith("drc: passed")
    assert answer_of("schedulers", "check", "drc", "--rounds", "5", "--json")["failures"] == []


def test_version_and_help():
    assert run("--version").stdout.strip() == f"bdfl {__version__}"
    for command in ("solve", "simulate", "compare", "bound", "reproduce", "scenario", "schedulers"):
        assert run(command, "--help").exit_code == 0


COMMANDS = [
    ("solve",), ("simulate",), ("compare",), ("bound",), ("reproduce",), ("scenario", "show"), ("scenario", "list"),
    ("schedulers",), ("schedulers", "check"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_and_speaks_json(command):
    shown = run(*command, "--help").stdout
    assert "Example" in shown
    assert f"bdfl {' '.join(command)}" in shown
    assert "--json" in shown


# mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulate", "nowhere.toml"), "scenario: nowhere.toml not found"),
        (("simulate", "minimal", "--set", "radio.bandwith_hz=1"), "radio.bandwith_hz"),
        (("simulate", "minimal", "--set", "radio.bandwidth_hz=-1"), "radio.bandwidth_hz"),
        (("simulate", "minimal", "--set", "clients.min_selected=9"), "clients.min_selected"),
        (("simulate", "minimal", "--set", "radio"), "not an override"),
        (("simulate", "minimal", "--rounds", "0"), "rounds"),
        (("simulate", "minimal", "--scheduler", "nobody"), "no scheduler 'nobody'"),
        (("simulate", "minimal", "--scheduler", "drc:speed=1"), "no parameter 'speed'"),
        (("compare", "minimal", "--schedulers", ""), "schedulers: none given"),
        (("compare", "minimal", "--schedulers", "drc,drc"), "given twice"),
        (("compare", "minimal", "--seeds", "0"), "seeds: 0 given"),
        (("compare", "minimal", "--workers", "0"), "workers: 0 given"),
        (("compare", "minimal", "--reference", "nobody"), "reference: 'nobody' given"),
        (("bound", "nowhere"), "nowhere not found"),
        (("reproduce", "fig9"), "'fig9' given, allowed are"),
        (("scenario", "show", "nowhere"), "nowhere not found"),
        (("schedulers", "check", "nobody"), "no scheduler 'nobody'"),
        (("solve", "nowhere.json"), "nowhere.json: No such file"),
        (("solve", "."), ".: Is a directory"),
        (("solve", "-"), "problem: "),
        (("simulate", "minimal", "--out", "/proc/nowhere"), "a writable folder expected"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(arguments, message):
    result = run(*arguments, stdin="{")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_usage_mistake_has_exit_code_two_and_no_traceback():
    result = run("simulate", "minimal", "--speed", "3")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_an_interrupted_command_is_quiet(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("bdfl.experiment.simulate", interrupt)
    result = run("simulate", "minimal")
    assert result.exit_code == 130
    assert result.output == ""


def bdfl(*arguments):
    return [sys.executable, "-c", "from bdfl.cli import main; main()", *arguments]


def test_a_real_process_answers_and_fails_the_same_way(problem_file):
    good = subprocess.run(bdfl("solve", problem_file), capture_output=True, text=True, check=False)
    assert good.returncode == 0
    assert json.loads(good.stdout)["status"] == "optimal"
    assert good.stderr == ""
    bad = subprocess.run(bdfl("solve", "nowhere.json"), capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: nowhere.json: No such file or directory, a readable file expected\n"


def test_a_reader_that_goes_away_causes_no_noise():
    writer = subprocess.Popen(
        bdfl("scenario", "show", "minimal", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    writer.stdout.close()
    assert writer.stderr.read() == b""
    writer.stderr.close()
    writer.wait()


def test_help_does_not_wait_for_pictures_or_workers():
    script = "import bdfl.cli, sys; print(*(name for name in ('matplotlib', 'scipy') if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""
