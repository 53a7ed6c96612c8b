"""Settings of differentially private training, off by default."""

from enum import StrEnum
from fractions import Fraction
from typing import Annotated

from msgspec import Meta

from bdfl.scenario.section import Section
from bdfl.scenario.values import Positive, about

MICRO = 10**6  # units of noise, clipping and epsilon on the chain
ATTO = 10**18  # units of delta there

Noise = Annotated[float, Meta(ge=1 / MICRO, le=10_000)]
Norm = Annotated[float, Meta(ge=1 / MICRO, le=10**9)]
Delta = Annotated[float, Meta(ge=1e-15, lt=0.5)]


class Accountant(StrEnum):
    """Privacy accountant: computes the total privacy loss of a client's steps."""

    RDP = "rdp"  # Renyi divergences of all orders; the best one counts
    PRV = "prv"  # the distribution of the privacy loss itself: tighter, slower


class Privacy(Section, frozen=True, kw_only=True):
    """Differentially private training; on if a noise multiplier or an epsilon is given."""

    noise_multiplier: Annotated[
        Noise | None, about("", "ours", "deviation of the noise over max_grad_norm; none: off, or as epsilon asks")
    ] = None
    epsilon: Annotated[
        Positive | None, about("", "ours", "most any client may spend if it trains in all rounds; none: not bounded")
    ] = None
    max_grad_norm: Annotated[Norm, about("", "ours", "norm to which the gradient of a sample is clipped")] = 1.0
    delta: Annotated[Delta, about("", "ours", "chance that epsilon does not hold; below 1 / samples")] = 1e-5
    accountant: Annotated[Accountant, about("", "ours", "privacy accountant: rdp, or prv, tighter and slower")] = (
        Accountant.RDP
    )

    @property
    def is_on(self) -> bool:
        """True if clients train privately."""
        return self.noise_multiplier is not None or self.epsilon is not None

    @property
    def noise_micro(self) -> int | None:
        """The noise multiplier in millionths; None if not given."""
        return None if self.noise_multiplier is None else round(Fraction(self.noise_multiplier) * MICRO)

    @property
    def clip_micro(self) -> int:
        """The norm to which gradients are clipped, in millionths."""
        return round(Fraction(self.max_grad_norm) * MICRO)

    @property
    def delta_atto(self) -> int:
        """Delta in 1e-18."""
        return round(Fraction(self.delta) * ATTO)
