"""Judging models: the test set, and the gradient of everybody's loss."""

import numpy as np
import pytest
import torch

from bdfl.learning import trainer as evaluation
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining


@pytest.fixture
def trainer(settings, small_data, deal):
    data = small_data()
    with open_trainer(settings(), data, deal(data, (40, 0, 100, 7))) as opened:
        yield opened


def scores_by_hand(data, weights, layout, inputs):
    """What the perceptron says, in double precision."""
    first, bias, second, other_bias = (part.astype(float) for _, part in layout.split(weights))
    train = data.train_inputs.astype(float)
    seen = (inputs.astype(float) - train.mean(axis=0)) / train.std(axis=0)
    return np.maximum(seen @ first.T + bias, 0) @ second.T + other_bias


def losses_by_hand(scores, labels):
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]


def test_accuracy_loss_and_recall_are_those_of_the_definition(trainer, small_data):
    data, weights = small_data(), trainer.initial_weights()
    result = trainer.evaluate(weights)
    scores = scores_by_hand(data, weights, trainer.layout, data.test_inputs)
    guessed = scores.argmax(axis=1)
    assert result.accuracy == np.mean(guessed == data.test_labels)
    assert result.loss == pytest.approx(losses_by_hand(scores, data.test_labels).mean(), rel=1e-6)
    expected = [np.mean(guessed[data.test_labels == label] == label) for label in range(4)]
    assert result.recall == pytest.approx(expected)


def test_a_label_the_test_set_lacks_has_no_recall(settings, small_data, deal):
    data = small_data(num_test=1)
    with open_trainer(settings(), data, deal(data, (40,))) as trainer:
        recall = trainer.evaluate(trainer.initial_weights()).recall
    assert np.isfinite(recall).tolist() == [label == data.test_labels[0] for label in range(4)]


def test_the_full_gradient_is_that_of_all_clients_data(trainer, small_data):
    data, weights = small_data(), trainer.initial_weights()
    held = slice(147)
    found = trainer.full_gradient(weights)
    scores = scores_by_hand(data, weights, trainer.layout, data.train_inputs[held])
    assert found.loss == pytest.approx(losses_by_hand(scores, data.train_labels[held]).mean(), rel=1e-6)
    for place in range(0, len(weights), 9):

        def loss_at(step, place=place):
            moved = weights.astype(np.float64)
            moved[place] += step
            parts, start = [], 0
            for shape, size in zip(trainer.layout.shapes, trainer.layout.sizes, strict=True):
                parts.append(moved[start : start + size].reshape(shape))
                start += size
            train = data.train_inputs.astype(float)
            seen = (train[held] - train.mean(axis=0)) / train.std(axis=0)
            scores = np.maximum(seen @ parts[0].T + parts[1], 0) @ parts[2].T + parts[3]
            return losses_by_hand(scores, data.train_labels[held]).mean()

        slope = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
        assert found.gradient[place] == pytest.approx(slope, abs=1e-5)


def test_chunks_change_nothing_but_rounding(trainer, monkeypatch):
    weights = trainer.initial_weights()
    whole, gradient = trainer.evaluate(weights), trainer.full_gradient(weights)
    monkeypatch.setattr(evaluation, "_CHUNK", 7)
    monkeypatch.setattr(evaluation, "_BLOCK", 21)
    parts, other = trainer.evaluate(weights), trainer.full_gradient(weights)
    assert parts.accuracy == whole.accuracy
    assert parts.recall.tolist() == whole.recall.tolist()
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert other.loss == pytest.approx(gradient.loss, rel=1e-6)
    assert other.gradient == pytest.approx(gradient.gradient, abs=1e-7)


def test_judging_draws_nothing_and_drops_nothing(settings, small_data, deal, tmp_path, monkeypatch):
    (tmp_path / "own_dropping_model.py").write_text(
        "from torch import nn\n"
        "def build(input_shape, num_labels):\n"
        "    return nn.Sequential(nn.Dropout(0.5), nn.Linear(input_shape[0], num_labels))\n"
    )
    monkeypatch.chdir(tmp_path)
    data = small_data()
    with open_trainer(settings("learning.model=own_dropping_model:build"), data, deal(data, (40,))) as trainer:
        weights = trainer.initial_weights()
        first = trainer.evaluate(weights), trainer.full_gradient(weights)
        torch.manual_seed(5)
        trainer.train(weights, 1, [0])
        again = trainer.evaluate(weights), trainer.full_gradient(weights)
    assert first[0].loss == again[0].loss
    assert first[1].gradient.tobytes() == again[1].gradient.tobytes()


def test_a_model_that_overflows_is_judged_without_warning(trainer):
    weights = np.full(trainer.layout.num_parameters, 3e38, np.float32)
    assert not np.isfinite(trainer.evaluate(weights).loss)
    assert 0 <= trainer.evaluate(weights).accuracy <= 1


def test_nobody_has_a_gradient_of_nothing(settings, small_data, deal):
    data = small_data()
    with (
        open_trainer(settings(), data, deal(data, (0, 0))) as trainer,
        pytest.raises(InvalidTraining, match="no client holds data"),
    ):
        trainer.full_gradient(trainer.initial_weights())
