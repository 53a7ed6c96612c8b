"""Augmentation: random flips and shifts of training images, drawn from (seed, round, client)."""

import numpy as np
import torch
from numpy.typing import NDArray

from bdfl.environment import Purpose, stream
from bdfl.learning.training import InvalidTraining
from bdfl.scenario import Augmentation

_MARGIN = 8  # a crop shifts by up to this part of a side: 4 pixels of 32

Changes = NDArray[np.int64]  # (samples, 3): 1 if mirrored, rows shifted down, columns shifted right


class Augmenter:
    """Draws the changes of a client's samples in a round, in the order of their use."""

    def __init__(self, kinds: tuple[Augmentation, ...], shape: tuple[int, ...], *, is_image: bool, seed: int) -> None:
        """`shape` is that of a stored image: height, width, channels."""
        if not is_image:
            raise InvalidTraining(f"learning.augment: {', '.join(kinds)} given, expected none for data without images")
        self._kinds = frozenset(kinds)
        self._most = [max(1, side // _MARGIN) for side in shape[:2]]
        self._seed = seed

    def draw(self, round: int, client: int, count: int) -> Changes:
        """Draw the changes of `count` samples."""
        rng = stream(self._seed, Purpose.AUGMENTATION, round, client)
        changes = np.zeros((count, 3), np.int64)
        if Augmentation.FLIP in self._kinds:
            changes[:, 0] = rng.integers(2, size=count)
        if Augmentation.CROP in self._kinds:
            for column, most in enumerate(self._most, start=1):
                changes[:, column] = rng.integers(-most, most + 1, size=count)
        return changes


def take_changed(stored: torch.Tensor, samples: torch.Tensor, changes: torch.Tensor) -> torch.Tensor:
    """Return these of the stored images (samples, height, width, channels), each mirrored and shifted; black enters."""
    height, width = stored.shape[1:3]
    rows = torch.arange(height, device=stored.device) - changes[:, 1:2]
    columns = torch.arange(width, device=stored.device) - changes[:, 2:3]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    columns = torch.where(changes[:, :1] == 1, width - 1 - columns, columns)
    places = samples[:, None, None], rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]
    return stored[places] * inside[..., None].to(stored.dtype)
