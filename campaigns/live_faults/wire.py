"""Model of a TCP connection over a slow, lossy network.

A lost segment delays itself and all after it by a retransmission timeout: an RTT plus Linux's minimum of 200 ms,
doubled with each further loss. The window is the mean that loss allows: 1.22 / sqrt(loss) segments [Mathis, Semke,
Mahdavi, Ott 1997].

At an RTT of 200 ms and 2 % loss, throughput is about 40 kB/s. The fuller model of [Padhye, Firoiu, Towsley, Kurose
1998] gives 53 kB/s, since it detects some losses before the timeout.
"""

import math
from dataclasses import dataclass

import numpy as np

from bdfl.errors import BdflError

SEGMENT = 1400  # bytes per packet
_LEAST_TIMEOUT_S = 0.2
_MATHIS = 1.22
_FEWEST, _MOST = 2, 3000  # segments in flight; the upper limit is about 4 MiB
_MOST_LOSSES = 6  # of one segment


class BadWire(BdflError):
    """Invalid parameters of a network."""


@dataclass(frozen=True)
class Wire:
    """A symmetric link."""

    delay_s: float = 0.0  # one way
    jitter_s: float = 0.0  # largest extra delay, drawn per segment; segments are never reordered
    loss: float = 0.0  # fraction of segments lost
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
        """Segments that may be in flight."""
        if not self.loss:
            return _MOST
        return min(max(_FEWEST, int(_MATHIS / math.sqrt(self.loss))), _MOST)

    def draw_delay_s(self, rng: np.random.Generator) -> float:
        """Draw the delay (s) of a segment that is not lost."""
        return self.delay_s + (self.jitter_s * rng.random() if self.jitter_s else 0.0)

    def draw_stall_s(self, rng: np.random.Generator) -> float:
        """Draw the extra delay (s) of a segment: 0 unless it is lost once or more."""
        losses = 0
        while self.loss and losses < _MOST_LOSSES and rng.random() < self.loss:
            losses += 1
        return float(2**losses - 1) * (_LEAST_TIMEOUT_S + self.round_trip_s)
