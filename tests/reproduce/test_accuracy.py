"""Table IV with training, at toy sizes: folders, going on, what is said of changes, verdicts that are not hollow."""

import csv
import io
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.experiment.run_folder import BadRunFolder
from bdfl.learning.training import Evaluation, LocalResult, Outcome
from bdfl.learning.weights import Layout
from bdfl.reproduce import Settings, Target, TrainingSettings, reproduce
from bdfl.reproduce.results import delay_keys, describe_changes, describe_delay, describe_sizes, differing_keys
from bdfl.reproduce.training import (
    InvalidCampaign,
    find_data,
    load_recipe,
    load_used,
    plan_campaign,
    run_campaign,
)
from bdfl.scenario import ScenarioError, load_scenario
from bdfl.scenario.files import find_scenario

COLUMNS = {"cifar10": "img", "svhn": "image"}
TINY = ("clients.samples=3", "rounds=3", "learning.local_steps=1", "learning.batch=2")

pytestmark = pytest.mark.usefixtures("coarse_pictures")


def write_data(folder, column):
    """Ten classes of 32x32 pictures, each with its bright bar in another place."""
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for split, per_label in (("train", 6), ("test", 2)):
        images, labels = [], []
        for label in np.repeat(np.arange(10), per_label):
            pixels = draw.integers(0, 60, (32, 32, 3)).astype(np.uint8)
            pixels[3 * label : 3 * label + 3] += 180
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            images.append({"bytes": file.getvalue(), "path": None})
            labels.append(int(label))
        table = pyarrow.table({column: images, "label": labels})
        pyarrow.parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for name, column in COLUMNS.items():
        write_data(root / name, column)
    return root


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


class Stub:
    """A model of one number that grows by one a round; its accuracy is ten points for each."""

    layout = Layout(("weight",), ((1,),))

    def __init__(self, scenario, stop_after=None):
        self.scenario, self.stop_after = scenario, stop_after

    def initial_weights(self):
        return np.zeros(1, dtype=np.float32)

    def train(self, weights, round, clients, personal):
        if self.stop_after is not None and round > self.stop_after:
            raise KeyboardInterrupt
        trained = weights + np.float32(1.0)
        return [LocalResult(client, Outcome.TRAINED, trained, 1.0, 1.0, 1) for client in clients]

    def evaluate(self, weights):
        noise = 0.001 * self.scenario.seed * (self.scenario.scheduler.name == "exact")
        return Evaluation(0.1 + 0.1 * float(weights[0]) + noise, 1.0, np.full(10, 0.5))


def use_stub(patch):
    opened, stop = [], {}

    @contextmanager
    def open_trainer(scenario, data, partition, *, workers):
        opened.append(scenario)
        yield Stub(scenario, stop.pop(len(opened), None))

    patch.setattr("bdfl.learning.trainer_pool.open_trainer", open_trainer)
    return opened, stop


@pytest.fixture
def stub(monkeypatch):
    """Training by the stub: a list of the scenarios trained, and by their number after which round to stop them."""
    return use_stub(monkeypatch)


@pytest.fixture(scope="module")
def whole(data, coarse_pictures, tmp_path_factory):
    """The usual campaign with the stub, one seed; only to be looked at."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        use_stub(patch)
        return make(folder, settings_of(data)), folder


def settings_of(data, **changes):
    return TrainingSettings(data=data, overrides=TINY, workers=1, **changes)


def make(folder, training):
    return reproduce(Target.TABLE4, Settings(folder, training=training))


def train(folder, training):
    """The runs without tables and figures."""
    return run_campaign(plan_campaign(training, folder), training)


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Real training.


def test_real_runs_give_the_whole_table(data, tmp_path):
    training = replace(settings_of(data, schedulers=("drc",)), overrides=(*TINY, "rounds=1"))
    found = make(tmp_path / "out", training)
    assert {Path(file).name for file in found.files} >= {"table4.html", "table4-curves.svg", "table4-accuracy.csv"}
    assert [row[:2] for row in found.tables[0].rows] == [["SVHN", "drc"], ["CIFAR-10", "drc"]]
    for run in ("svhn-drc-0", "cifar10-drc-0"):
        assert (tmp_path / "out" / "runs" / run / "final.safetensors").is_file()


# Folders and going on.


def test_a_finished_campaign_is_not_trained_again_and_says_the_same(data, whole, stub):
    first, folder = whole
    pages = {path: path.read_bytes() for path in map(Path, first.files)}
    assert make(folder, settings_of(data)) == first
    assert stub[0] == []
    assert {path: path.read_bytes() for path in pages} == pages


def test_a_campaign_that_was_stopped_ends_in_the_same_bytes(data, whole, tmp_path, stub):
    opened, stop = stub
    stop[3] = 1  # the third run, after its first round
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, settings_of(data))
    train(tmp_path, settings_of(data))
    assert len(opened) == 3 + 6  # two whole runs are used, the third is gone on with; drc shares channel-best's
    files = [path for path in sorted((whole[1] / "runs").rglob("*")) if path.is_file()]
    assert len(files) > 40
    for path in files:
        assert (tmp_path / path.relative_to(whole[1])).read_bytes() == path.read_bytes(), path


def test_more_seeds_use_the_runs_that_are_there(data, tmp_path, stub):
    two = {"only": "svhn", "schedulers": ("drc", "random")}
    train(tmp_path, settings_of(data, **two))
    train(tmp_path, settings_of(data, **two, num_seeds=2))
    assert [scenario.seed for scenario in stub[0]] == [0] * 2 + [1] * 2


def test_a_folder_of_another_scenario_is_refused_before_any_work(data, tmp_path, stub):
    opened, _ = stub
    train(tmp_path, settings_of(data, only="cifar10", schedulers=("random",)))
    changed = replace(settings_of(data), overrides=(*TINY, "learning.batch=3"))
    with pytest.raises(BadRunFolder, match=r"cifar10-random-0: begun with learning.batch 2, now 3: another --out"):
        train(tmp_path, changed)
    assert len(opened) == 1


def test_summaries_are_enough(data, whole, tmp_path, stub):
    first, folder = whole
    (tmp_path / "runs").mkdir()
    for path in (folder / "runs").glob("*.json"):
        (tmp_path / "runs" / path.name).write_bytes(path.read_bytes())
    again = make(tmp_path, settings_of(data))
    assert stub[0] == []
    assert (again.tables, again.verdicts, again.notes) == (first.tables, first.verdicts, first.notes)


def test_schedulers_that_choose_the_same_clients_are_trained_once(data, tmp_path, stub):
    choices = {"only": "svhn", "schedulers": ("channel-best", "random", "drc")}
    shared = train(tmp_path / "shared", settings_of(data, **choices))
    alone = train(tmp_path / "alone", settings_of(data, **{**choices, "schedulers": ("drc",)}))[0].summary
    assert [scenario.scheduler.name for scenario in stub[0]] == ["channel-best", "random", "drc"]
    found = shared[2].summary
    assert (found.same_as, shared[0].summary.same_as, alone.same_as) == ("channel-best", None, None)
    assert found.delay_s == pytest.approx(alone.delay_s, rel=1e-6)  # a chain has whole Hz and microwatts
    assert found.delay_s != shared[0].summary.delay_s
    assert (found.selected, found.accuracy, found.loss) == (alone.selected, alone.accuracy, alone.loss)


@pytest.mark.parametrize("change", ["faults.loss=0.1", 'adversaries.kind="drop-updates"'])
def test_with_trouble_on_the_way_equal_sets_are_no_equal_trainings(data, tmp_path, stub, change):
    settings = settings_of(data, only="svhn", schedulers=("channel-best", "drc"))
    runs = train(tmp_path, replace(settings, overrides=(*settings.overrides, change)))
    assert runs[0].summary.selected == runs[1].summary.selected
    assert [scenario.scheduler.name for scenario in stub[0]] == ["channel-best", "drc"]
    assert runs[1].summary.same_as is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "not a summary of a run"),
        (b'{"format": 9}', "format 9 found, bdfl .* reads format 1"),
        (b'{"format": 1, "scenario": 5}', "not a summary of a run"),
        (b"\xff", "not a summary of a run"),
    ],
)
def test_a_damaged_summary_is_one_line(content, message, data, tmp_path, stub):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "svhn-drc-0.json").write_bytes(content)
    with pytest.raises(BadRunFolder, match=rf"svhn-drc-0.json: {message}"):
        train(tmp_path, settings_of(data, only="svhn", schedulers=("drc",)))


def test_a_summary_of_other_settings_is_refused(data, tmp_path, stub):
    one = {"only": "svhn", "schedulers": ("drc",)}
    planned = train(tmp_path, settings_of(data, **one))[0].planned
    rmtree(planned.folder)
    changed = replace(settings_of(data, **one), overrides=(*TINY, "learning.batch=3"))
    with pytest.raises(BadRunFolder, match=r"svhn-drc-0.json: of a run with other settings: another --out"):
        train(tmp_path, changed)


# Recipes.


@pytest.mark.parametrize("recipe", ["table4", "literal"])
def test_shipped_recipes_change_training_alone_and_say_why(recipe, data):
    for data_set in COLUMNS:
        shipped = load_scenario(find_scenario(f"paper-{data_set}"))
        used = load_used(data_set, data / data_set, TrainingSettings(data=data), recipe)
        assert delay_keys(used, shipped) == []
        assert used.rounds == shipped.rounds
        changed = {key for key, _, _ in differing_keys(used, shipped, leave_out=("data.source",))}
        unsaid = {"learning.evaluate_every", "learning.unit", "learning.local_steps"}
        assert changed - unsaid <= load_recipe(recipe).reasons.keys()


def test_options_win_over_the_recipe_and_reasons_are_told(data, tmp_path, stub):
    path = tmp_path / "own.toml"
    path.write_text(
        'description = "mine"\n[svhn.learning]\nbatch = 7\nmomentum = 0.0\n[reasons]\n"learning.momentum" = "because"'
    )
    training = settings_of(data, only="svhn", schedulers=("drc",), recipe=str(path))
    found = make(tmp_path / "out", training)
    assert (stub[0][0].learning.batch, stub[0][0].learning.momentum) == (2, 0.0)
    assert "SVHN, learning.momentum: because" in found.notes


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, InvalidCampaign, "--recipe: .* given, expected literal, table4 or a TOML file"),
        ("not TOML", InvalidCampaign, "--recipe: .* given, expected literal, table4 or a TOML file"),
        ('description = "x"\nsvnh = {}', InvalidCampaign, "--recipe: .*own.toml: .*svnh"),
        ('description = "x"\n[svhn.learning]\nbatsh = 3', ScenarioError, "learning.batsh"),
    ],
)
def test_a_wrong_recipe_is_one_line(content, error, message, data, tmp_path, stub):
    path = tmp_path / "own.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=message):
        train(tmp_path, settings_of(data, only="svhn", recipe=str(path)))


def test_the_papers_algorithm_by_another_recipe_has_a_row_of_its_own_and_changes_no_other(data, tmp_path, stub):
    recipe = tmp_path / "own.toml"
    recipe.write_text('description = "x"\n[svhn.learning]\nlearning_rate = 0.125')
    training = settings_of(data, only="svhn", schedulers=("random", "drc"), num_seeds=2)
    alone = make(tmp_path / "alone", training)
    found = make(tmp_path / "out", replace(training, beside=str(recipe)))
    assert [row[1] for row in found.tables[0].rows] == ["random", "drc", f"drc, {recipe} recipe"]
    assert found.tables[0].rows[:2] == alone.tables[0].rows
    assert (found.tables[1:], found.verdicts) == (alone.tables[1:], alone.verdicts)
    rates = [scenario.learning.learning_rate for scenario in stub[0]]
    assert rates.count(0.125) == 2  # one a seed: drc's own training is not taken for it
    assert any("learning.learning_rate 0.125 instead of" in note for note in found.notes)


def test_progress_counts_down_over_all_runs(data, tmp_path, stub):
    said = []
    train(tmp_path, settings_of(data, schedulers=("drc", "random"), on_progress=said.append))
    assert [now.rounds_left for now in said] == list(range(11, -1, -1))
    assert (said[-1].run, said[-1].num_runs, said[-1].title) == (4, 4, "CIFAR-10, random, seed 0")


# Which data.


def test_data_are_found_inside_a_folder_or_are_the_folder(data):
    assert find_data(data) == {"svhn": data / "svhn", "cifar10": data / "cifar10"}
    assert find_data(data, "svhn") == {"svhn": data / "svhn"}
    assert find_data(data / "cifar10") == {"cifar10": data / "cifar10"}


def test_data_that_are_missing_or_nameless_are_said_in_one_line(data, tmp_path):
    write_data(tmp_path / "half" / "cifar10", "img")
    write_data(tmp_path / "pictures", "img")
    (tmp_path / "empty").mkdir()
    for folder, only, message in (
        (tmp_path / "nowhere", None, "not found, a folder with cifar10 and svhn in it expected"),
        (tmp_path / "empty", None, "has no folder svhn and none cifar10"),
        (tmp_path / "half", None, "has no folder svhn, expected with Parquet, or --only cifar10"),
        (tmp_path / "pictures", None, "is one data set, but which"),
        (data / "svhn", "cifar10", "is svhn by its name, --only cifar10 given"),
        (data, "mnist", "'mnist' given, allowed are cifar10 and svhn"),
    ):
        with pytest.raises(InvalidCampaign, match=message) as error:
            find_data(folder, only)
        assert "\n" not in str(error.value)
    assert find_data(tmp_path / "pictures", "cifar10") == {"cifar10": tmp_path / "pictures"}


def test_one_data_set_alone_is_said(data, tmp_path, stub):
    found = make(tmp_path, settings_of(data / "svhn", schedulers=("drc",)))
    assert "left out: CIFAR-10; only SVHN was run" in found.notes


@pytest.mark.parametrize("override", ["scheduler.name=random", "data.source=digits"])
def test_what_has_an_option_of_its_own_is_not_set(data, tmp_path, override):
    with pytest.raises(InvalidCampaign, match="it is chosen with --"):
        plan_campaign(TrainingSettings(data=data, overrides=(override,)), tmp_path)


# What is said of changes.


def scenario_with(*overrides):
    return load_scenario(find_scenario("paper-cifar10"), overrides)


def test_nothing_is_said_of_the_shipped_scenario():
    assert describe_changes(scenario_with(), scenario_with()) == []


def test_every_change_is_said():
    used = scenario_with("rounds=20", "learning.local_steps=1", "learning.batch=32", "learning.learning_rate=0.05")
    assert describe_changes(used, scenario_with()) == [
        "20 of 100 rounds",
        "1 instead of 20 local epochs",
        "learning.batch 32 instead of 64",
        "learning.learning_rate 0.05 instead of 0.001",
    ]
    assert describe_changes(scenario_with("learning.unit=updates"), scenario_with()) == [
        "20 local updates instead of 20 local epochs"
    ]


def test_data_that_are_not_the_published_ones_are_said():
    assert describe_sizes("cifar10", 50_000, 10_000) is None
    assert describe_sizes("cifar10", 24_000, 10_000) == "data: 24,000 training images (published: 50,000)"


def test_only_what_the_delay_model_reads_affects_simulated_time():
    short = scenario_with("learning.local_steps=1", "learning.batch=8", "rounds=3")
    assert describe_delay(short, scenario_with()).startswith(
        "simulated time is not affected: every round is charged H = 20"
    )
    small = scenario_with("learning.local_steps=1", "clients.samples=30")
    assert describe_delay(small, scenario_with()) == "simulated time is affected, by clients.samples"


def test_local_steps_really_made_leave_simulated_time_as_it_is(data, tmp_path, stub):
    def delays(steps):
        training = replace(
            settings_of(data, schedulers=("drc", "random")), overrides=(*TINY, f"learning.local_steps={steps}")
        )
        return [run.summary.delay_s for run in train(tmp_path / str(steps), training)]

    assert delays(1) == delays(7)


# Numbers and verdicts.


def test_the_papers_time_is_prorated_to_the_rounds_run(whole):
    row = next(row for row in whole[0].tables[1].rows if row[:2] == ["SVHN", "drc"])
    assert row[2:5] == ["3 of 200", 188.75, pytest.approx(188.75 * 3 / 200)]


def test_one_seed_has_no_intervals_and_says_so(whole):
    found = whole[0]
    assert all(row[5] is None and row[7] is None for row in found.tables[0].rows)
    assert any(note.startswith("1 seed: no intervals") for note in found.notes)
    assert not any("beyond the noise" in verdict.claim for verdict in found.verdicts)


def test_seeds_give_intervals(data, tmp_path, stub):
    found = make(tmp_path, settings_of(data, only="svhn", num_seeds=3, schedulers=("drc", "exact:tradeoff=50")))
    exact = next(row for row in found.tables[0].rows if row[1] == "exact V=50")
    assert exact[4] == pytest.approx(40.1)
    assert exact[5] == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-6)
    assert any("beyond the noise of 3 seeds" in verdict.claim for verdict in found.verdicts)


def test_differences_that_seeds_cannot_tell_are_not_judged(data, tmp_path, stub, monkeypatch):
    draw = np.random.default_rng(0)
    monkeypatch.setattr(Stub, "evaluate", lambda *_: Evaluation(draw.uniform(0.2, 0.9), 1.0, np.full(10, 0.5)))
    found = make(tmp_path, settings_of(data, only="svhn", num_seeds=2, schedulers=("drc", "random")))
    assert not any("beyond the noise" in verdict.claim for verdict in found.verdicts)
    assert any("whether schedulers differ is not judged" in note for note in found.notes)


def test_schedulers_that_train_the_same_clients_are_one_measurement(whole):
    notes = whole[0].notes
    assert any(note.startswith("SVHN: channel-best and drc trained the same clients") for note in notes)
    assert not any("random and" in note for note in notes)


def test_equal_learning_is_fastest_where_rounds_are_shortest(whole):
    reach = [verdict for verdict in whole[0].verdicts if "needs least simulated seconds" in verdict.claim]
    assert [verdict.holds for verdict in reach] == [True, True]
    assert {row[2] for row in whole[0].tables[2].rows} == {30.0, 35.0, 40.0}


def test_a_short_run_is_not_the_papers_accuracy_and_its_time_is_not_judged(whole):
    verdicts = [verdict for verdict in whole[0].verdicts if "of the paper's" in verdict.claim]
    assert [verdict.holds for verdict in verdicts] == [False, False]
    assert all("accuracy" in verdict.claim for verdict in verdicts)


def test_curves_are_written_from_the_untrained_model_on(whole):
    rows = [
        row for row in read_rows(whole[1] / "table4-curves.csv") if (row["data"], row["scheduler"]) == ("SVHN", "drc")
    ]
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["accuracy"]) for row in rows] == pytest.approx([10, 20, 30, 40])
    assert float(rows[0]["simulated_s"]) == 0.0


def test_rounds_that_are_not_evaluated_are_left_out_of_curves(data, tmp_path, stub):
    training = replace(
        settings_of(data, only="svhn", schedulers=("drc",)), overrides=(*TINY, "learning.evaluate_every=2")
    )
    make(tmp_path, training)
    assert [row["round"] for row in read_rows(tmp_path / "table4-curves.csv")] == ["0", "2", "3"]


def test_the_page_says_what_was_shortened_and_no_folder_of_this_machine(data, whole):
    page = (whole[1] / "table4.html").read_text(encoding="utf-8")
    assert "3 of 200 rounds; 1 instead of 20 local epochs" in page
    assert str(data) not in page
    assert "<script" not in page
    assert "src=" not in page


# The command.


def call(*words):
    return CliRunner().invoke(app, ["reproduce", *map(str, words)])


def test_the_command_passes_its_options_on(data, tmp_path, stub):
    opened, _ = stub
    options = ("--rounds", 2, "--local-steps", 3, "--unit", "updates", "--batch", 5, "--evaluate-every", 2)
    result = call(
        "table4", "--data", data, *options, "--set", "clients.samples=3", "--set", "learning.momentum=0.5",
        "--schedulers", "drc,exact:tradeoff=40", "--only", "svhn", "--seeds", 1, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    learning = opened[0].learning
    assert (opened[0].rounds, learning.local_steps, learning.unit.value, learning.batch) == (2, 3, "updates", 5)
    assert (learning.evaluate_every, learning.momentum) == (2, 0.5)
    assert [scenario.scheduler.tradeoff for scenario in opened] == [10.0, 40.0]
    assert "2 of 200 rounds" in result.stdout
    assert "run 2 of 2 (SVHN, exact V=40, seed 0): round 2 of 2" in result.stderr


def test_a_stopped_command_says_where_it_is_and_how_to_go_on(data, tmp_path, stub):
    stub[1][2] = 1
    result = call("table4", "--data", data, "--rounds", 3, "--set", "clients.samples=3", "--out", tmp_path)
    assert result.exit_code == 130
    assert "stopped in run 2 of 42 (SVHN, round-robin, seed 0) after round 1; the same command goes on" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table4", "--rounds", "3"), "rounds=3 given, which needs --data DIR"),
        (("table4", "--only", "svhn"), "--only given, which needs --data DIR"),
        (("table4", "--recipe", "literal"), "--recipe given, which needs --data DIR"),
        (("table4", "--quick"), "rounds=3 given, which needs --data DIR"),
        (("table4", "--data", ".", "--address", "auto"), "--address: given with --engine local"),
        (("fig2", "--data", "."), "--data given, which is for table4"),
        (("table4", "--data", "nowhere"), "nowhere not found"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(words, message):
    result = call(*words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
