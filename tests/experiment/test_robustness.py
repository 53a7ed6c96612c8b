"""The campaign of rules against attacks: what is played, what is told of it, and what cannot be played."""

import numpy as np
import pytest

from bdfl.aggregation import min_updates
from bdfl.experiment.robustness import (
    ATTACKS,
    CLEAN,
    RULES,
    Attack,
    PoisonedRun,
    RuleChoice,
    choose_rule,
    judge_cells,
    parse_attacks,
    play_poisoning,
    poisoned_scenario,
    show_attack,
    summarise_runs,
)
from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.scenario import Aggregation, Behaviour, PartitionMethod, load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.registry import InvalidChoice
from tests.prepared_processes import use_prepared_processes

IID, SKEWED = PartitionMethod.IID, PartitionMethod.DIRICHLET
FLIP = Attack(Behaviour.SIGN_FLIP, 3.0)


def tiny(*changes):
    return load_scenario(find_scenario("poisoning"), ["rounds=1", "compute.local_updates=4", *changes])


@pytest.fixture
def prepared(monkeypatch):
    use_prepared_processes(monkeypatch)


def train(scenario, path):
    federated = prepare_run(scenario)
    with (
        open_trainer(scenario, federated.data, federated.partition) as trainer,
        create_run_folder(path, scenario) as folder,
    ):
        return train_run(federated, trainer, folder)


def played(partition, attack, rule, seed, *percents):
    return PoisonedRun(
        partition=partition, attack=attack, rule=rule, seed=seed, accuracy=[percent / 100 for percent in percents]
    )


def test_every_rule_meets_every_attack_on_even_and_on_skewed_data():
    progress = []
    found = play_poisoning(
        tiny(),
        attacks=[FLIP],
        rules=["median"],
        num_seeds=2,
        workers=1,
        on_progress=lambda done, total: progress.append((done, total)),
    )
    assert [rule.name for rule in found.rules] == ["mean", "median"]  # the mean is the clean run's
    assert found.attacks[0] == CLEAN
    assert found.seeds == [0, 1]
    assert len(found.runs) == 2 * 2 * 2 * 2
    assert progress[-1] == (8, 8)  # rules share what prepares training
    assert len(found.cells) == 8
    assert {(cell.partition, cell.attack, cell.rule) for cell in found.cells} == {
        (partition, attack, rule) for partition in (IID, SKEWED) for attack in found.attacks for rule in found.rules
    }
    assert [(verdict.partition, verdict.attack) for verdict in found.verdicts] == [
        (partition, attack) for partition in (IID, SKEWED) for attack in found.attacks[1:]
    ]
    assert found.find_cell(IID, CLEAN, found.rules[0]).below_clean.mean == 0.0
    assert all(len(run.accuracy) == 1 for run in found.runs)


def test_a_run_of_the_campaign_is_the_run_of_its_scenario(tmp_path):
    scenario = tiny("rounds=2")
    found = play_poisoning(scenario, attacks=[FLIP], rules=["mean"], num_seeds=1, workers=1)
    for run in found.runs:
        one = poisoned_scenario(scenario, run.partition, run.attack, run.rule, run.seed)
        _, learning = train(one, tmp_path / f"{run.partition}-{run.attack.kind}")
        assert run.accuracy == learning.accuracy.tolist()


@pytest.mark.usefixtures("prepared")
def test_two_workers_give_what_one_gives():
    scenario = tiny("learning.engine=loop")
    alone, together = (
        play_poisoning(scenario, attacks=[FLIP], rules=["mean"], num_seeds=1, workers=workers) for workers in (1, 2)
    )
    assert alone.runs == together.runs


def test_poisoned_runs_have_other_models_and_an_honest_run_the_same(tmp_path):
    mean = ("learning.aggregation.rule=mean", "learning.aggregation.faulty=0")  # a robust rule may leave all of it out
    final = {}
    for name, changes in {
        "honest": ["adversaries.kind=honest"],
        "nobody": ["adversaries.members=[]"],
        "labels": ["adversaries.kind=label-flip"],
        "signs": [],
    }.items():
        train(tiny(*mean, *changes), tmp_path / name)
        final[name] = (tmp_path / name / "final.safetensors").read_bytes()
    assert final["honest"] == final["nobody"]
    assert len(set(final.values())) == 3


@pytest.mark.usefixtures("prepared")
def test_flipped_labels_reach_training_processes_too(tmp_path):
    scenario = tiny("adversaries.kind=label-flip", "learning.engine=loop", "rounds=1")
    federated = prepare_run(scenario)
    models = []
    for workers in (1, 2):
        with open_trainer(scenario, federated.data, federated.partition, workers=workers) as trainer:
            models.append(trainer.train(trainer.initial_weights(), 1, [0, 9]))
    for one, other in zip(*models, strict=True):
        assert np.array_equal(one.weights, other.weights)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_told_of_all_adversaries_or_as_many_as_it_can_bear(name):
    for num_updates in range(1, 14):
        faulty = choose_rule(name, num_updates, 4).faulty
        more = Aggregation(rule=name, faulty=faulty + 1)
        assert faulty <= 4
        assert faulty == 0 or min_updates(Aggregation(rule=name, faulty=faulty)) <= num_updates
        if name != "mean" and faulty < 4:
            assert min_updates(more) > num_updates


def test_with_ten_updates_krum_cannot_bear_four_wrong_ones():
    found = {name: choose_rule(name, 10, 4).faulty for name in RULES}
    assert found == {"mean": 0, "median": 4, "trimmed-mean": 4, "krum": 3, "multi-krum": 3, "minimum-diameter": 4}


def test_points_below_are_taken_seed_by_seed_from_the_clean_run_of_the_same_data():
    mean, median = RuleChoice("mean", 0), RuleChoice("median", 4)
    runs = [
        played(IID, CLEAN, mean, 0, 50, 90),
        played(IID, CLEAN, mean, 1, 50, 96),
        played(SKEWED, CLEAN, mean, 0, 70),
        played(IID, FLIP, mean, 0, 40),
        played(IID, FLIP, mean, 1, 20),
        played(IID, FLIP, median, 0, 89),
        played(IID, FLIP, median, 1, 93),
        played(SKEWED, FLIP, mean, 0, 69),
        played(SKEWED, FLIP, median, 0, 60),
    ]
    cells = {(cell.partition, cell.attack, cell.rule.name): cell for cell in summarise_runs(runs)}
    borne = cells[IID, FLIP, "median"]
    assert borne.final_percent.mean == pytest.approx(91)
    assert (borne.least_percent, borne.greatest_percent) == pytest.approx((89, 93))
    assert borne.below_clean.mean == pytest.approx(2)
    assert borne.most_below_clean == pytest.approx(3)
    assert cells[IID, FLIP, "mean"].below_clean.mean == pytest.approx(63)
    assert cells[SKEWED, FLIP, "median"].below_clean.mean == pytest.approx(10)
    even, skewed = judge_cells(list(cells.values()))
    assert (even.best_rule, even.is_borne, even.mean_fails) == ("median", True, True)
    assert (skewed.is_borne, skewed.mean_fails) == (False, False)


def test_attacks_are_written_as_they_are_read():
    assert parse_attacks("label-flip, scaling:20,lazy") == [
        Attack(Behaviour.LABEL_FLIP),
        Attack(Behaviour.SCALING, 20.0),
        Attack(Behaviour.LAZY),
    ]
    assert parse_attacks(",".join(map(show_attack, ATTACKS))) == list(ATTACKS)
    assert show_attack(CLEAN) == "none"


@pytest.mark.parametrize("text", ["silent", "honest", "scaling:", "scaling:x", "scaling:-1", "scaling:inf", "lazy:2"])
def test_attacks_that_do_not_exist_are_refused(text):
    with pytest.raises(InvalidChoice, match=text.partition(":")[0]):
        parse_attacks(text)


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ((), {"num_seeds": 0}, "seeds: 0 given"),
        (("adversaries.members=[]",), {}, "adversaries.members: none given"),
        ((), {"attacks": []}, "attacks: none given"),
        ((), {"attacks": [FLIP, FLIP]}, "'sign-flip:3' given twice"),
        ((), {"rules": []}, "rules: none given"),
        ((), {"rules": ["median", "median"]}, "'median' given twice"),
    ],
)
def test_a_campaign_that_cannot_be_played_is_refused(changes, options, expected):
    with pytest.raises(InvalidChoice, match=expected):
        play_poisoning(tiny(*changes), **options)
