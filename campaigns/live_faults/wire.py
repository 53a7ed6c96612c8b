"""What a slow, lossy network does to a TCP connection, modelled plainly.

A lost segment, and all behind it, come one retransmission timeout later: a round trip and the 200 ms that Linux waits
at least, and twice as much again each time that it is lost once more. As many segments are on their way at once as loss
allows on average, 1.22 / sqrt(loss) [Mathis, Semke, Mahdavi, Ott 1997].

At 200 ms there and back and 2 % loss that passes about 40 kB/s; the fuller model of [Padhye, Firoiu, Towsley, Kurose
1998] says 53 kB/s, since there some losses are noticed before the timeout.
"""

import math
from dataclasses import dataclass

import numpy as np

from bdfl.errors import BdflError

SEGMENT = 1400  # bytes in one packet
_LEAST_TIMEOUT_S = 0.2
_MATHIS = 1.22
_FEWEST, _MOST = 2, 3000  # segments on their way at once; the most are about 4 MiB
_MOST_LOSSES = 6  # of one segment


class BadWire(BdflError):
    """A network that does not exist."""


@dataclass(frozen=True)
class Wire:
    """A line between two places, each way alike."""

    delay_s: float = 0.0  # one way
    jitter_s: float = 0.0  # at most so much more, drawn for every segment; none overtakes another
    loss: float = 0.0  # share of segments that are lost on the way
    bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        for name in ("delay_s", "jitter_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise BadWire(f"{name}: {getattr(self, name)} given, expected a time of 0 s or more")
        if not 0.0 <= self.loss < 1.0:
            raise BadWire(f"loss: {self.loss} given, expected a share from 0 to below 1")
        if not self.bytes_per_s > 0.0:
            raise BadWire(f"bytes_per_s: {self.bytes_per_s} given, expected more than 0")

    @property
    def round_trip_s(self) -> float:
        return 2.0 * self.delay_s + self.jitter_s

    @property
    def window(self) -> int:
        """Segments that may be on their way at once."""
        if not self.loss:
            return _MOST
        return min(max(_FEWEST, int(_MATHIS / math.sqrt(self.loss))), _MOST)

    def draw_delay_s(self, rng: np.random.Generator) -> float:
        """How long a segment takes that is not lost."""
        return self.delay_s + (self.jitter_s * rng.random() if self.jitter_s else 0.0)

    def draw_stall_s(self, rng: np.random.Generator) -> float:
        """How much longer a segment takes: 0 unless it is lost, once or again and again."""
        losses = 0
        while self.loss and losses < _MOST_LOSSES and rng.random() < self.loss:
            losses += 1
        return float(2**losses - 1) * (_LEAST_TIMEOUT_S + self.round_trip_s)
