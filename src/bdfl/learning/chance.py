"""Random sources of private training: the public seed in a simulation, the operating system in a live node."""

import os
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri

from bdfl.environment import Purpose, stream


class Chance(Protocol):
    """Random source for one client's private training in one round."""

    def draw_uniform(self, count: int) -> NDArray[np.float64]:
        """Draw `count` numbers, each at least 0 and below 1."""
        ...

    def draw_normal(self, shape: torch.Size) -> torch.Tensor:
        """Draw numbers of mean 0 and standard deviation 1, float32."""
        ...


class SeededChance:
    """Drawn from (seed, round, client): reproducible bits. The seed is public, so the noise can be removed."""

    def __init__(self, seed: int, round: int, client: int) -> None:
        self._uniform = stream(seed, Purpose.BATCHES, round, client)
        self._normal = torch.Generator()
        self._normal.manual_seed(int(stream(seed, Purpose.NOISE, round, client).integers(2**63)))

    def draw_uniform(self, count: int) -> NDArray[np.float64]:
        return self._uniform.random(count)

    def draw_normal(self, shape: torch.Size) -> torch.Tensor:
        return torch.randn(shape, generator=self._normal)


class SecretChance:
    """Drawn from the operating system's generator: neither reproducible nor predictable.

    A normal number is the sum of four quantiles of uniform numbers with 53 bits, divided by two. A single one would
    leave gaps between floating-point numbers that distinguish the noise from the data it hides [Holohan21].
    """

    _ADDED = 4

    def draw_uniform(self, count: int) -> NDArray[np.float64]:
        bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
        return bits.astype(np.float64) * 2.0**-53

    def draw_normal(self, shape: torch.Size) -> torch.Tensor:
        halves = [ndtri(self.draw_uniform(shape.numel()) + 2.0**-54) for _ in range(self._ADDED)]
        total = np.sum(halves, axis=0) / np.sqrt(self._ADDED)
        return torch.from_numpy(total.astype(np.float32)).view(shape)
