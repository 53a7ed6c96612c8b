"""Inputs as a model sees them."""

import numpy as np
import pytest
import torch

from bdfl.learning.torch_model import find_scaling, input_shape, make_inputs
from bdfl.scenario import Normalisation

EVERYTHING = slice(None)


def take(inputs, normalisation, samples=EVERYTHING, *, keeps_channels_last=False, like=None):
    labels = np.zeros(len(inputs), np.int64)
    scaling = find_scaling(inputs if like is None else like, normalisation)
    made = make_inputs(inputs, labels, scaling, keeps_channels_last=keeps_channels_last)
    return made.take(torch.arange(len(inputs))[samples])


@pytest.fixture
def images():
    return np.random.default_rng(1).integers(0, 256, (50, 5, 4, 3)).astype(np.uint8)


@pytest.fixture
def features():
    return np.random.default_rng(1).normal(100, [0.01, 1, 100], (200, 3)).astype(np.float32)


def test_every_channel_gets_mean_zero_and_deviation_one(images):
    seen = take(images, Normalisation.CHANNEL).double()
    assert seen.shape == (50, 3, 5, 4)
    assert seen.mean(dim=(0, 2, 3)).numpy() == pytest.approx(np.zeros(3), abs=1e-6)
    assert seen.std(dim=(0, 2, 3), correction=0).numpy() == pytest.approx(np.ones(3), rel=1e-6)


def test_every_feature_gets_mean_zero_and_deviation_one(features):
    seen = take(features, Normalisation.CHANNEL).double()
    assert seen.mean(dim=0).numpy() == pytest.approx(np.zeros(3), abs=1e-3)
    assert seen.std(dim=0, correction=0).numpy() == pytest.approx(np.ones(3), rel=1e-3)


@pytest.mark.parametrize("value", [0.0, 0.1, -7e30, 1e-42])
def test_a_feature_that_never_changes_becomes_zero(features, value):
    features[:, 1] = np.float32(value)
    seen = take(features, Normalisation.CHANNEL)
    assert (seen[:, 1] == 0).all()
    assert torch.isfinite(seen).all()


def test_a_channel_that_never_changes_becomes_zero(images):
    images[..., 2] = 77
    assert (take(images, Normalisation.CHANNEL)[:, 2] == 0).all()


def test_a_feature_that_changes_less_than_floats_can_tell_stays_finite():
    features = np.full((9, 1), 1e-45, np.float32)
    features[0] = 0
    assert torch.isfinite(take(features, Normalisation.CHANNEL)).all()


def test_the_test_set_is_measured_by_the_training_set(features):
    seen = take(features + 1, Normalisation.CHANNEL, like=features)
    assert float(seen[:, 1].mean()) == pytest.approx(1 / features[:, 1].std(), rel=1e-3)


def test_without_normalisation_bytes_become_zero_to_one_and_floats_stay(images, features):
    seen = take(images, Normalisation.NONE).permute(0, 2, 3, 1).numpy()
    assert seen == pytest.approx(images / 255, abs=1e-7)
    assert (take(features, Normalisation.NONE).numpy() == features).all()


@pytest.mark.parametrize("normalisation", Normalisation)
def test_taking_a_batch_changes_nothing_that_is_stored(images, features, normalisation):
    for inputs in (images, features):
        before = inputs.tobytes()
        take(inputs, normalisation)
        assert inputs.tobytes() == before


def test_images_share_memory_and_come_channels_last_where_asked(images):
    made = make_inputs(images, np.zeros(50, np.int64), None, keeps_channels_last=True)
    assert made.stored.data_ptr() == images.__array_interface__["data"][0]
    assert made.take(torch.arange(7)).is_contiguous(memory_format=torch.channels_last)
    assert take(images, Normalisation.CHANNEL).is_contiguous()


def test_read_only_files_are_used_where_they_lie(images, tmp_path):
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    made = make_inputs(mapped, np.zeros(50, np.int64), None, keeps_channels_last=True)
    assert made.stored.data_ptr() == mapped.__array_interface__["data"][0]
    assert (take(mapped, Normalisation.CHANNEL) == take(images, Normalisation.CHANNEL)).all()


def test_a_model_is_told_shapes_with_channels_first(small_data):
    assert input_shape(small_data((5, 4, 3), as_bytes=True)) == (3, 5, 4)
    assert input_shape(small_data((5, 4, 3))) == (5, 4, 3)
    assert input_shape(small_data((6,))) == (6,)
