"""Personal layers: split off the weights, trained with them, kept by each client, judged on the labels it holds."""

import os
import stat

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import load_file
from torch import nn

from bdfl.learning.models import build_model
from bdfl.learning.optimizers import LocalOptimizer, make_settings
from bdfl.learning.personal import BadPersonalLayers, PersonalFolder, deal_test
from bdfl.learning.torch_model import FlatModel, split_layout
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining, LocalResult, Outcome
from bdfl.learning.weights import InvalidWeights, Layout
from bdfl.scenario import Learning, Scenario, ScenarioError, override_scenario, scenario_digest
from tests.prepared_processes import use_prepared_processes

SIZES = (40, 33, 5, 0, 60)
HEAD = 'learning.personal=["3"]'  # of the perceptron, whose layers are 1 and 3
LAYOUT = Layout(("head",), ((3,),))


@pytest.fixture
def opened(settings, small_data, deal):
    """A function that opens a trainer of five clients."""

    def open_it(*changes, workers=1, sizes=SIZES, shape=(6,)):
        data = small_data(shape, as_bytes=len(shape) == 3)
        scenario = settings(f"clients.count={len(sizes)}", *changes)
        return open_trainer(scenario, data, deal(data, sizes), workers=workers)

    return open_it


def play(trainer, num_rounds=3):
    """Rounds of all clients: the results, the last mean of the weights, and the personal values of each client."""
    weights, personal, results = trainer.initial_weights(), {}, []
    for round in range(1, num_rounds + 1):
        found = trainer.train(weights, round, range(len(SIZES)), personal)
        trained = [result for result in found if result.outcome is Outcome.TRAINED]
        personal = personal | {result.client: result.personal for result in trained}
        weights = np.mean([result.weights for result in trained], axis=0)
        results += trained
    return results, weights, personal


# Names


def test_a_prefix_ends_at_a_dot_and_a_star_is_any_text():
    cnn, resnet = (build_model(Learning(model=name), (3, 32, 32), 10) for name in ("paper-cnn", "resnet-20"))
    assert split_layout(cnn, ["11"])[1].names == ("11.weight", "11.bias")
    assert split_layout(cnn, ["11.bias", "0"])[1].names == ("0.weight", "0.bias", "11.bias")
    norms = split_layout(resnet, ["1", "*norm"])[1].names
    assert len(norms) == 2 * 19
    whole, nothing = split_layout(resnet, [])
    assert nothing == Layout((), ())
    assert set(norms) | set(split_layout(resnet, ["1", "*norm"])[0].names) == set(whole.names)
    with pytest.raises(InvalidTraining) as caught:  # not 11
        split_layout(cnn, ["0", "1"])
    assert str(caught.value) == "learning.personal: '1' given, expected some of the model's layers: 0, 3, 7, 9, 11"


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight


@pytest.mark.parametrize(
    ("module", "prefixes", "message"),
    [
        (
            nn.Sequential(nn.Linear(2, 2)),
            ["*"],
            r"^learning.personal: \* given, expected trained layers to be left that",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), ["0", "1.weight", "1.bias"], "expected trained layers"),
        (
            Tied(),
            ["second"],
            r"^learning.personal: 'first.weight' is tied to a personal tensor, expected both or neither$",
        ),
        (
            nn.Sequential(nn.BatchNorm1d(2)),
            ["0.num_batches_tracked"],
            "'0.num_batches_tracked' given, expected some of",
        ),
    ],
)
def test_prefixes_that_cannot_be_are_one_line(module, prefixes, message):
    with pytest.raises(InvalidTraining, match=message):
        split_layout(module, prefixes)


def test_a_tensor_that_is_tied_may_be_personal_under_both_names():
    module = Tied()
    module.head = nn.Linear(4, 2)
    model = FlatModel(module, channels_last=False, personal=["first", "second"])
    assert model.layout.names == ("head.weight", "head.bias")
    model.load(model.read(), np.arange(2 * (16 + 4), dtype=np.float32))
    assert model.read_personal()[20:36].tolist() == model.read_personal()[:16].tolist()


def test_a_trainer_refuses_a_prefix_without_a_tensor_before_anything_is_written(opened):
    with (
        pytest.raises(InvalidTraining, match=r"'fc' given, expected some of the model's layers: 1, 3$"),
        opened('learning.personal=["fc"]'),
    ):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("privacy.noise_multiplier=1.0",), 'learning.personal: .*"3".*where training is private'),
        (("learning.flower=own:client_fn",), "learning.personal: .*a Flower client has its own layers"),
        (("learning.gradient_every=2",), "learning.gradient_every: 2 given, allowed is 0 where layers are personal"),
        (('learning.personal=[""]',), r"learning.personal"),
    ],
)
def test_what_does_not_go_with_personal_layers_is_refused(changes, message):
    with pytest.raises(ScenarioError, match=message):
        override_scenario(Scenario(), [HEAD, *changes])


def test_without_personal_layers_a_scenario_keeps_its_digest():
    assert scenario_digest(override_scenario(Scenario(), ["learning.personal=[]"])) == scenario_digest(Scenario())
    assert scenario_digest(override_scenario(Scenario(), [HEAD])) != scenario_digest(Scenario())


# Training


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_weights_have_no_personal_tensor_and_clients_have_their_own(opened, engine):
    with opened() as whole, opened(HEAD, f"learning.engine={engine}") as trainer:
        assert (trainer.layout.names, trainer.personal_layout.names) == (whole.layout.names[:2], whole.layout.names[2:])
        start = whole.initial_weights()
        assert np.array_equal(trainer.initial_weights(), start[: trainer.layout.num_parameters])
        common, split = (one.train(one.initial_weights(), 1, range(5)) for one in (whole, trainer))
        for former, result in zip(common, split, strict=True):  # in the first round all start from the same values
            if former.outcome is Outcome.TRAINED:
                joined = np.concatenate([result.weights, result.personal])
                np.testing.assert_allclose(joined, former.weights, atol=1e-5)
        _, _, personal = play(trainer)
    assert sorted(personal) == [0, 1, 2, 4]
    assert len({values.tobytes() for values in personal.values()}) == 4


def test_a_client_goes_on_from_its_own_values(opened):
    with opened(HEAD) as trainer:
        weights = trainer.initial_weights()
        [first] = trainer.train(weights, 1, [0])
        [again] = trainer.train(weights, 2, [0])
        [further] = trainer.train(weights, 2, [0], {0: first.personal, 1: again.personal})
        assert not np.array_equal(again.personal, further.personal)
        assert further.loss < again.loss
        with pytest.raises(InvalidWeights):
            trainer.train(weights, 2, [0], {0: first.weights})


@pytest.mark.parametrize(
    "changes", [(), ("learning.proximal=0.5",), ("learning.optimizer=adamw", "learning.clip_norm=1.0")]
)
def test_any_number_of_workers_gives_the_same_bytes_and_engines_agree(opened, changes, monkeypatch):
    use_prepared_processes(monkeypatch)
    found = []
    for engine, workers in (("loop", 1), ("loop", 2), ("vmap", 1)):
        with opened(
            HEAD, f"learning.engine={engine}", "learning.learning_rate=0.02", *changes, workers=workers
        ) as trainer:
            results, weights, personal = play(trainer)
            found.append((results, trainer.evaluate(weights, personal)))
    (alone, judged), (spread, judged_spread), (rows, judged_rows) = found
    for one, other, row in zip(alone, spread, rows, strict=True):
        assert one.weights.tobytes() == other.weights.tobytes()
        assert one.personal.tobytes() == other.personal.tobytes()
        np.testing.assert_allclose(row.personal, one.personal, atol=1e-4)
        np.testing.assert_allclose(row.weights, one.weights, atol=1e-4)
    assert (judged.accuracy, judged.loss) == (judged_spread.accuracy, judged_spread.loss)
    assert judged_rows.loss == pytest.approx(judged.loss, rel=1e-3)


@pytest.mark.parametrize("width", [3, 400])  # gradients as one tensor, and one for each parameter
def test_the_proximal_term_does_not_hold_personal_layers_back(width):
    module = nn.Sequential(nn.Linear(200, width), nn.ReLU(), nn.Linear(width, 2))
    model = FlatModel(module, channels_last=False, personal=["2"])
    optimizer = LocalOptimizer(
        make_settings(Learning(proximal=1.0, learning_rate=0.25), 1, 1), model.tensors, is_shared=model.is_shared
    )
    before, own = model.read(), model.read_personal()
    for tensor in model.tensors:
        tensor.add_(1.0)
    optimizer.step([torch.zeros_like(tensor) for tensor in model.tensors])
    np.testing.assert_allclose(model.read(), before + 0.75, atol=1e-6)
    np.testing.assert_allclose(model.read_personal(), own + 1.0, atol=1e-6)


def test_normalisation_layers_may_be_personal_with_their_running_means(opened, tmp_path, monkeypatch):
    (tmp_path / "own_normalising_model.py").write_text(
        "from torch import nn\n"
        "def build(input_shape, num_labels):\n"
        "    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.BatchNorm1d(8), nn.Linear(8, num_labels))\n"
    )
    monkeypatch.chdir(tmp_path)
    with opened("learning.model=own_normalising_model:build", 'learning.personal=["1"]') as trainer:
        assert trainer.personal_layout.names == ("1.weight", "1.bias", "1.running_mean", "1.running_var")
        _, weights, personal = play(trainer)
        assert len({values.tobytes() for values in personal.values()}) == 4
        assert trainer.evaluate(weights, personal).accuracy > trainer.evaluate(trainer.initial_weights()).accuracy


@pytest.mark.parametrize("engine", ["loop", "vmap"])
def test_training_that_diverges_leaves_no_personal_values(opened, engine):
    with opened(HEAD, "learning.learning_rate=1e30", f"learning.engine={engine}") as trainer:
        results = trainer.train(trainer.initial_weights(), 1, range(5))
    assert {(result.outcome, result.personal is None) for result in results} == {
        (Outcome.DIVERGED, True),
        (Outcome.NO_SAMPLES, True),
    }


# Evaluation


@given(
    counts=arrays(np.int64, (4, 3), elements=st.integers(0, 20)),
    labels=st.lists(st.integers(0, 2), max_size=60).map(lambda drawn: np.array(drawn, np.int64)),
)
def test_every_test_sample_is_judged_once_by_a_client_that_holds_its_label(counts, labels):
    dealt = deal_test(labels, counts)
    held = counts.sum(axis=0)
    assert sorted(np.concatenate(dealt)) == [place for place, label in enumerate(labels) if held[label]]
    for client, own in enumerate(dealt):
        for label in range(3):
            fair = np.count_nonzero(labels == label) * counts[client, label] / max(1, held[label])
            found = np.count_nonzero(labels[own] == label)
            assert abs(found - fair) < 1
            assert counts[client, label] or not found


def test_with_equal_personal_layers_the_accuracy_is_that_of_the_whole_model(opened):
    with opened() as whole, opened(HEAD) as trainer:
        plain, personal = (one.evaluate(one.initial_weights()) for one in (whole, trainer))
    assert personal.accuracy == plain.accuracy
    assert personal.recall.tolist() == plain.recall.tolist()
    assert personal.loss == pytest.approx(plain.loss)


def test_each_client_is_judged_with_its_own_layers_on_its_own_labels(settings, small_data, deal):
    data = small_data()
    order = np.argsort(data.train_labels, kind="stable")
    ends = np.cumsum(np.bincount(data.train_labels))
    partition = deal(data, (1, 1, 1))
    partition = type(partition)(
        tuple(np.split(order, ends[:3])[:3]), partition.label_counts
    )  # a label each; nobody holds 3
    with open_trainer(settings("clients.count=3", HEAD), data, partition) as trainer:
        always = np.zeros((3, trainer.personal_layout.num_parameters), np.float32)
        for client in range(3):
            always[client, -4 + client] = 100.0  # the bias of its label
        found = trainer.evaluate(trainer.initial_weights(), dict(enumerate(always)))
        swapped = trainer.evaluate(trainer.initial_weights(), dict(enumerate(always[::-1])))
    assert (found.accuracy, found.recall[:3].tolist(), np.isnan(found.recall[3])) == (1.0, [1.0] * 3, True)
    assert swapped.recall[:3].tolist() == [0.0, 1.0, 0.0]


def test_nobody_is_judged_where_nobody_holds_data(opened):
    with opened(HEAD, sizes=(0, 0, 0)) as trainer:
        found = trainer.evaluate(trainer.initial_weights())
    assert np.isnan([found.accuracy, found.loss, *found.recall]).all()


# Files


def result_of(client, *values):
    return LocalResult(client, Outcome.TRAINED, None, 0.0, 0.0, 1, np.array(values, np.float32))


def test_a_training_starts_from_the_latest_before_it_however_often_it_is_repeated(tmp_path):
    folder = PersonalFolder(tmp_path, LAYOUT)
    assert folder.find([0]) == {}
    for round, value in ((2, 1.0), (5, 2.0), (5, 3.0)):
        folder.keep(round, [result_of(0, value, 0, 0), LocalResult(1, Outcome.DIVERGED, None, 0.0, 0.0, 1)])
    starts = [folder.find([0, 1], before) for before in (2, 3, 5, 6)]
    assert [{client: own[0] for client, own in start.items()} for start in starts] == [{}, {0: 1.0}, {0: 1.0}, {0: 3.0}]
    assert len(list(tmp_path.glob("0/*"))) == 2
    assert folder.forget_after(5, [0, 1]) == {0: 5, 1: 0}
    assert folder.forget_after(2, [0, 1]) == {0: 2, 1: 0}
    assert folder.find([0])[0].tolist() == [1, 0, 0]


def test_old_files_go_and_those_that_stay_are_for_their_owner_alone(tmp_path):
    folder = PersonalFolder(tmp_path / "personal", LAYOUT, num_kept=2)
    for round in (1, 2, 1_000_000):
        folder.keep(round, [result_of(7, round, 0, 0)])
    files = sorted((tmp_path / "personal" / "7").iterdir())
    assert [file.name.partition("-")[0] for file in files] == ["000002", "1000000"]
    assert folder.find([7])[7][0] == 1_000_000
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700
    assert load_file(files[0])["head"].tolist() == [2.0, 0.0, 0.0]


def damage(path):
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "harm", [damage, link, lambda path: path.write_bytes(b""), lambda path: os.truncate(path, 20)], ids=range(4)
)
def test_a_file_that_is_not_what_was_written_is_one_line_and_never_used(tmp_path, harm):
    folder = PersonalFolder(tmp_path, LAYOUT)
    folder.keep(1, [result_of(0, 1, 2, 3)])
    folder.keep(2, [result_of(0, 4, 5, 6)])
    path = max(tmp_path.glob("0/*"))
    harm(path)
    with pytest.raises(BadPersonalLayers) as caught:
        folder.find([0])
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("; without the file the client goes back to its earlier personal layers")
    path.unlink()
    assert folder.find([0])[0].tolist() == [1, 2, 3]


def test_layers_of_another_model_and_files_of_others_are_not_taken(tmp_path):
    PersonalFolder(tmp_path, LAYOUT).keep(1, [result_of(0, 1, 2, 3)])
    for name in ("000009.safetensors", ".000009.tmp", "000009-00.safetensors"):
        (tmp_path / "0" / name).write_bytes(b"")
    assert PersonalFolder(tmp_path, LAYOUT).forget_after(1, [0]) == {0: 1}
    with pytest.raises(BadPersonalLayers, match=r"bytes given, expected .* for this model"):
        PersonalFolder(tmp_path, Layout(("head",), ((4,),))).find([0])
