"""Network faults: loss, delay, duplication and reordering of messages, and partitions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bdfl.protocol.messages import Message

_AT_ONCE = (0,)
_LOST = ()


@dataclass(frozen=True)
class Weather:
    """Random faults of every message."""

    loss: float = 0.0  # share that never arrives
    duplication: float = 0.0  # share that arrives twice
    delay_ns: int = 0  # mean of the extra delay, exponential: later messages overtake earlier ones


@dataclass(frozen=True)
class Partition:
    """A temporary network partition: no message passes between an island and the rest, or leaves the island."""

    start_ns: int
    end_ns: int
    island: frozenset[int]
    is_one_way: bool = False  # messages still reach the island

    def cuts(self, now_ns: int, sender: int, receiver: int) -> bool:
        """Return whether a message from `sender` to `receiver` is lost now."""
        if not self.start_ns <= now_ns < self.end_ns:
            return False
        leaves = sender in self.island and receiver not in self.island
        enters = sender not in self.island and receiver in self.island
        return leaves or (enters and not self.is_one_way)


class FaultyPostman:
    """A `Postman` with random faults and partitions; draws from one random stream, in order of calls.

    Faults end at `until_ns`, and random ones also above the height `last_height`; delays then have the mean `calm_ns`.
    """

    def __init__(
        self,
        weather: Weather,
        partitions: Sequence[Partition],
        rng: np.random.Generator,
        *,
        until_ns: int | None = None,
        last_height: int | None = None,
        calm_ns: int = 0,
    ) -> None:
        self._weather = weather
        self._partitions = tuple(partitions)
        self._rng = rng
        self._until_ns = until_ns
        self._last_height = last_height
        self._calm_ns = calm_ns

    def deliveries(self, now_ns: int, sender: int, receiver: int, message: Message) -> Sequence[int]:
        """Extra delay (ns) of every copy that arrives; empty: the message is lost."""
        if self._until_ns is not None and now_ns >= self._until_ns:
            return self._in_calm()
        if any(partition.cuts(now_ns, sender, receiver) for partition in self._partitions):
            return _LOST
        if self._last_height is not None and message.height > self._last_height:
            return self._in_calm()
        weather, draw = self._weather, self._rng.random
        if weather.loss and draw() < weather.loss:
            return _LOST
        copies = 2 if weather.duplication and draw() < weather.duplication else 1
        if not weather.delay_ns:
            return _AT_ONCE * copies
        return tuple(int(self._rng.exponential(weather.delay_ns)) for _ in range(copies))

    def _in_calm(self) -> Sequence[int]:
        return (int(self._calm_ns * self._rng.uniform(0.5, 1.5)),) if self._calm_ns else _AT_ONCE
