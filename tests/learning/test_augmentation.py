"""Augmented images: what is drawn, and which pixel comes from where."""

import numpy as np
import pytest
import torch

from bdfl.learning.torch_model import Augmenter, take_changed
from bdfl.learning.training import InvalidTraining
from bdfl.scenario import Augmentation

BOTH = (Augmentation.FLIP, Augmentation.CROP)
SHAPE = (16, 9, 3)


def make(kinds=BOTH, *, seed=1, is_image=True):
    return Augmenter(kinds, SHAPE, is_image=is_image, seed=seed)


def test_every_pixel_comes_from_its_place():
    images = np.random.default_rng(0).integers(1, 256, (4, *SHAPE), dtype=np.uint8)
    samples = np.array([2, 0, 2, 3, 1, 1])
    changes = np.array([[0, 0, 0], [1, 0, 0], [1, 2, -1], [0, -2, 1], [0, 0, 1], [1, 1, 0]])
    taken = take_changed(*map(torch.from_numpy, (images, samples, changes))).numpy()
    assert taken.dtype == np.uint8
    for found, sample, (mirrored, down, right) in zip(taken, samples, changes, strict=True):
        image = images[sample, :, ::-1] if mirrored else images[sample]
        expected = np.zeros_like(image)
        for row, column in np.ndindex(SHAPE[:2]):
            if 0 <= row - down < SHAPE[0] and 0 <= column - right < SHAPE[1]:
                expected[row, column] = image[row - down, column - right]
        assert np.array_equal(found, expected)


def test_flips_are_one_in_two_and_shifts_an_eighth_of_each_side_at_most():
    changes = make().draw(1, 0, 20_000)
    mirrored, down, right = changes.T
    assert set(mirrored) == {0, 1}
    assert abs(mirrored.mean() - 0.5) < 0.02  # 5.7 standard deviations
    assert set(down) == {-2, -1, 0, 1, 2}
    assert set(right) == {-1, 0, 1}


def test_only_what_is_asked_for_is_drawn():
    flipped, cropped = make((Augmentation.FLIP,)).draw(1, 0, 50), make((Augmentation.CROP,)).draw(1, 0, 50)
    assert flipped[:, 0].any()
    assert not flipped[:, 1:].any()
    assert cropped[:, 1:].any()
    assert not cropped[:, 0].any()


def test_changes_belong_to_seed_round_and_client():
    first = make().draw(2, 3, 40)
    assert np.array_equal(first, make().draw(2, 3, 40))
    for other in (make(seed=9).draw(2, 3, 40), make().draw(9, 3, 40), make().draw(2, 9, 40)):
        assert not np.array_equal(first, other)


def test_features_are_not_augmented():
    with pytest.raises(InvalidTraining, match=r"^learning.augment: flip, crop given, expected none for data without"):
        make(is_image=False)
