"""A Flower client as it is, in every form: the same bits whoever asks it, and every mistake of its in one line."""

import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays as draw_arrays

from bdfl.environment import Purpose, stream
from bdfl.learning import flower_trainer
from bdfl.learning.flower_clients import BadArrays, form_of, name_arrays
from bdfl.learning.flower_trainer import FlowerClients, FlowerLocalTrainer, rehearse_clients, suggest_workers
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, Outcome, TrainingFailed
from bdfl.learning.weights import encode_weights
from bdfl.plugins import BadFunction
from bdfl.scenario import Scenario, ScenarioError, dump_scenario, load_scenario, override_scenario

CLIENTS = Path(__file__).with_name("flower_clients.py")
FORMS = ("client_fn", "unwrapped_fn", "numbered_fn", "bytes_fn", "app_of_function", "app")


@pytest.fixture
def flower(tmp_path, monkeypatch):
    """A function from a client's name to a scenario with three of them; their module is in the working folder."""
    shutil.copy(CLIENTS, tmp_path / "flower_test_clients.py")
    monkeypatch.chdir(tmp_path)

    def choose(name, *changes):
        few = ["clients.count=3", "clients.min_selected=1"]
        return override_scenario(Scenario(), [f"learning.flower=flower_test_clients:{name}", *few, *changes])

    return choose


def play(scenario, *, workers=1, rounds=(1, 2)):
    """Everybody's results, round by round from their plain mean, and how the last model is judged."""
    clients = rehearse_clients(scenario)
    with open_trainer(scenario, clients, clients.partition, workers=workers) as trainer:
        weights, played = trainer.initial_weights(), []
        for round in rounds:
            played.append(trainer.train(weights, round, [2, 0, 1]))
            weights = np.mean([result.weights for result in played[-1]], axis=0, dtype=np.float32)
        return played, trainer.evaluate(weights), trainer


def vectors(played):
    return [[result.weights.tobytes() for result in results] for results in played]


def test_a_training_is_what_the_client_does_with_its_own_draws(flower):
    scenario = flower("client_fn", "seed=5")
    clients = rehearse_clients(scenario)
    with open_trainer(scenario, clients, clients.partition) as trainer:
        start = trainer.initial_weights()
        [result] = trainer.train(start, 3, [2])
    draws = stream(5, Purpose.TRAINING, 3, 2)
    draws.integers(2**63)
    for_python, for_numpy = map(int, draws.integers(2**32, size=2))
    noise = np.random.RandomState(for_numpy).normal(size=(3, 2)) + random.Random(for_python).random()
    expected = [*(start[:6] * np.float32(0.5) + noise.astype(np.float32).reshape(-1)), 8.0, 2.0, 2.0]
    assert np.array_equal(result.weights, np.array(expected, np.float32))
    assert (result.client, result.outcome, result.loss) == (2, Outcome.TRAINED, 1.5)
    assert clients.samples == (10, 11, 12)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_client_gives_the_same_bits(flower, form):
    model = "learning.flower_model=flower_test_clients:first_arrays"
    expected, expected_judgement, _ = play(flower("client_fn", model))
    played, judgement, trainer = play(flower(form, model))
    assert trainer.layout.names == ("a", "b", "c")
    assert vectors(played) == vectors(expected)
    assert [result.loss for result in played[0]] == [1.5] * 3
    assert (judgement.accuracy, judgement.loss) == (expected_judgement.accuracy, expected_judgement.loss)


def test_processes_do_not_change_a_bit_and_neither_does_asking_twice(flower):
    played, judgement, _ = play(flower("client_fn"))
    for workers in (1, 2):
        again, other, _ = play(flower("client_fn"), workers=workers)
        assert vectors(again) == vectors(played)
        assert (other.accuracy, other.loss) == (judgement.accuracy, judgement.loss)


def test_another_seed_gives_another_model_and_the_digest_says_so(flower):
    found = [rehearse_clients(flower("client_fn", f"seed={seed}")) for seed in (0, 0, 1)]
    assert found[0].digest == found[1].digest != found[2].digest
    assert not np.array_equal(found[0].beginning.weights, found[2].beginning.weights)


def test_the_global_generators_are_as_they_were(flower):
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    play(flower("client_fn"))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_the_global_model_is_judged_by_all_clients_weighted_by_their_examples(flower):
    _, judgement, _ = play(flower("client_fn"))
    assert judgement.loss == pytest.approx((0 * 5 + 1 * 10 + 2 * 15) / 30)
    assert judgement.accuracy == pytest.approx((0 * 5 + 0.25 * 10 + 0.5 * 15) / 30)
    assert np.isnan(judgement.recall).all()


def test_where_nobody_evaluates_nothing_is_known(flower):
    _, judgement, _ = play(flower("shy_fn", "learning.flower_model=flower_test_clients:first_arrays"))
    assert np.isnan([judgement.accuracy, judgement.loss]).all()


def test_a_client_is_told_what_flower_would_tell_it_and_keeps_no_state(flower, capsys):
    config = 'learning.flower_config={local-epochs = 2, name = "x"}'
    play(flower("listening_fn", config), rounds=(1, 2))
    heard = sys.modules["flower_test_clients"].heard
    told = [entry for entry in heard if isinstance(entry, tuple)]
    assert all(state == {} for _, _, state in told)
    assert {place["partition-id"] for place, _, _ in told} == {0, 1, 2}
    assert all(place["num-partitions"] == 3 for place, _, _ in told)
    assert all(settings == {"local-epochs": 2, "name": "x"} for _, settings, _ in told)
    rounds = [entry["server-round"] for entry in heard if isinstance(entry, dict)]
    assert rounds == [1, 1, 1, 1, 1, 1, 2, 2, 2]  # the rehearsal is that of round 1
    assert capsys.readouterr().out == ""  # what it prints goes where logs go


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("raise", "cannot train as client 1: ValueError: not today"),
        ("exit", "cannot train as client 1: SystemExit: 3"),
        ("nothing", "fit gave a NoneType, expected arrays, the number of examples and metrics"),
        ("shape", "array 'arr_0' of shape (2, 2) given, expected shape (3, 2)"),
        ("fewer", "2 arrays given, expected 3"),
        ("text", "array 'arr_0' of type <U4 given, expected numbers"),
        ("lists", "a list at place 0 given, expected a numpy array"),
        ("half", "0.5 given as the number of examples, expected a whole number from 0"),
        ("examples", "client 1 trained on 12 examples, 11 expected, as many as at the start"),
    ],
)
def test_what_a_client_does_wrong_is_said_in_one_line(flower, how, expected):
    scenario = flower(f"{how}_fn")
    clients = rehearse_clients(scenario)
    with (
        open_trainer(scenario, clients, clients.partition) as trainer,
        pytest.raises(TrainingFailed) as caught,
    ):
        trainer.train(trainer.initial_weights(), 2, [1])
    assert expected in str(caught.value)
    assert str(caught.value).startswith("learning.flower: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["nan", "large"])
def test_weights_that_no_float_can_hold_are_a_divergence(flower, how):
    scenario = flower(f"{how}_fn")
    clients = rehearse_clients(scenario)
    with open_trainer(scenario, clients, clients.partition) as trainer:
        [result] = trainer.train(trainer.initial_weights(), 2, [1])
    assert (result.outcome, result.weights) == (Outcome.DIVERGED, None)


@pytest.mark.parametrize(
    ("name", "changes", "error", "expected"),
    [
        ("nobody_fn", [], BadFunction, "no nobody_fn in module flower_test_clients, expected a function of that name"),
        ("heard", [], BadFunction, "heard is no function"),
        ("no_client_fn", [], TrainingFailed, "it gave a str, expected a Flower client"),
        ("two_fn", [], TrainingFailed, "it takes 2 arguments, expected one, the context"),
        ("shy_fn", [], BadFunction, "says nothing of its first arrays, expected get_parameters in the client, or"),
        ("app", [], BadFunction, "--flower-model module:Net"),
        ("app", ["learning.flower_model=flower_test_clients:nothing"], BadFunction, "no nothing in module"),
        ("app", ["learning.flower_model=flower_test_clients:complex_arrays"], TrainingFailed, "of type complex64"),
        ("app", ["learning.flower_model=flower_test_clients:infinite_arrays"], TrainingFailed, "not finite"),
        ("app", ["learning.flower_model=flower_test_clients:Numbers"], TrainingFailed, "cannot begin as client 0"),
    ],
)
def test_what_is_no_client_is_said_before_anything_is_trained(flower, name, changes, error, expected):
    with pytest.raises(error) as caught:
        rehearse_clients(flower(name, *changes))
    assert expected in str(caught.value)


def test_without_flower_there_is_a_command_that_installs_it(flower, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    with pytest.raises(Exception, match=r"a Flower client needs Flower: pip install .*\[flower\]"):
        rehearse_clients(flower("client_fn"))


def test_a_client_without_examples_never_trains(flower):
    scenario = flower("empty_fn")
    clients = rehearse_clients(scenario)
    assert clients.samples == (10, 0, 12)
    assert clients.partition.samples.tolist() == [10, 0, 12]
    with open_trainer(scenario, clients, clients.partition) as trainer:
        found = trainer.train(trainer.initial_weights(), 1, [1, 2])
        assert [result.outcome for result in found] == [Outcome.NO_SAMPLES, Outcome.TRAINED]
        assert trainer.evaluate(trainer.initial_weights()).loss == pytest.approx((0 * 5 + 2 * 15) / 20)
        with pytest.raises(InvalidTraining, match="gives no gradients"):
            trainer.full_gradient(trainer.initial_weights())
        with pytest.raises(InvalidTraining, match="client 3: not there, expected 0 to 2"):
            trainer.train(trainer.initial_weights(), 1, [3])


def test_a_client_that_brings_pytorch_with_its_first_answer_is_asked_again(flower, monkeypatch):
    answers = iter([False, False, False, True])  # known before, held steady, seeded; then it came
    monkeypatch.setattr(flower_trainer, "_has_torch", lambda: next(answers, True))
    asked = []
    bench = FlowerLocalTrainer.__new__(FlowerLocalTrainer)
    bench._scenario, bench._name = flower("client_fn"), "x"
    assert bench._ask("train", 0, Purpose.TRAINING, 1, lambda: asked.append(1) or len(asked)) == 2


def test_models_of_clients_are_safetensors_like_all_others(flower):
    clients = rehearse_clients(flower("client_fn"))
    assert clients.beginning.form.layout.names == ("arr_0", "arr_1", "arr_2")
    assert clients.beginning.form.types == ("<f4", "<i8", "<f8")
    assert b"arr_0" in encode_weights(clients.beginning.weights, clients.beginning.form.layout)


@given(
    draw_arrays(np.float32, (2, 3), elements=st.floats(-1e6, 1e6, width=32)),
    st.integers(-(2**24), 2**24),
    draw_arrays(np.float64, (4,), elements=st.floats(-1e6, 1e6, width=32)),
)
def test_arrays_come_back_as_they_were_where_float32_can_hold_them(matrix, count, vector):
    given_arrays = name_arrays([matrix, np.array(count), vector])
    form = form_of(given_arrays)
    found = form.split(form.join(given_arrays))
    assert list(found) == list(given_arrays)
    for name, array in found.items():
        assert array.dtype == given_arrays[name].dtype
        assert np.array_equal(array, given_arrays[name])
        assert array.base is None  # its own, to be changed at will


@pytest.mark.parametrize("wrong", [np.array("a"), np.array([True]), np.array([1j]), np.array([None])])
def test_arrays_that_are_not_numbers_are_refused(wrong):
    with pytest.raises(BadArrays, match="expected numbers"):
        form_of({"x": wrong})


def test_no_arrays_are_no_model():
    with pytest.raises(BadArrays, match="no arrays given"):
        form_of({})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["learning.flower=client_fn"], 'learning.flower: "client_fn" given, allowed is a name such as'),
        (["learning.flower_model=Net"], 'learning.flower_model: "Net" given'),
        (["learning.flower=a:b", "learning.gradient_every=1"], "learning.gradient_every: 1 given, allowed is 0"),
        (
            ["learning.flower=a:b", "adversaries.kind=label-flip", "adversaries.members=[0]"],
            'adversaries.kind: "label-flip" given, allowed is another',
        ),
        (["learning.flower_config={x = [1]}"], "learning.flower_config.x: [1] given"),
    ],
)
def test_scenarios_that_no_flower_client_can_play_are_refused(changes, expected):
    with pytest.raises(ScenarioError) as caught:
        override_scenario(Scenario(), changes)
    assert str(caught.value).startswith(expected)


def test_a_scenario_with_a_flower_client_is_written_and_read_back(tmp_path):
    scenario = override_scenario(Scenario(), ["learning.flower=a.b:c", "learning.flower_config={local-epochs=2}"])
    (tmp_path / "x.toml").write_text(dump_scenario(scenario))
    again = load_scenario(tmp_path / "x.toml")
    assert again == scenario
    assert again.learning.flower_config == {"local-epochs": 2}


def test_more_processes_only_where_training_lasts(flower):
    clients = rehearse_clients(flower("client_fn"))
    quick = FlowerClients(clients.name, clients.beginning, clients.samples, clients.digest, training_s=0.01)
    slow = FlowerClients(clients.name, clients.beginning, clients.samples, clients.digest, training_s=5.0)
    scenario = flower("client_fn", "rounds=100", "clients.min_selected=2")
    assert (suggest_workers(quick, scenario, 4), suggest_workers(slow, scenario, 2)) == (1, 2)
    assert suggest_workers(slow, scenario, 64) == 3
