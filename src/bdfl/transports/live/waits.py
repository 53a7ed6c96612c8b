"""How long a live node waits, where the scenario does not say."""

from dataclasses import dataclass
from math import exp

from bdfl.ledger.units import NANO
from bdfl.protocol.state import Timing
from bdfl.scenario import Scenario
from bdfl.scenario.learning import LocalUnit
from bdfl.scenario.live import LiveMode
from bdfl.scenario.values import Choice, Lognormal, Normal, PerClientWhole, Uniform

_LEAST_GRACE_S = 5.0
_LEAST_RESEND_S = 1.0
_MEMBERS_PER_RESEND_S = 16  # everybody says all it holds to everybody: the more, the more seldom
_LEAST_FETCH_S = 2.0
_LEASE_S = 5.0
_BYTES_PER_S = 5e6  # that a busy machine moves and checks, at the least
_WEIGHTS_PER_S = 5e7  # weights times samples that a busy machine trains, at the least
_WEIGHT_SIZE = 4  # bytes


@dataclass(frozen=True)
class Waits:
    """All waits of a live node."""

    timing: Timing
    fetch_s: float
    lease_s: float


def live_timing(scenario: Scenario, model_size: int) -> Timing:
    """How long a node waits for updates, agreement and answers; `model_size` in bytes."""
    return live_waits(scenario, model_size).timing


def live_waits(scenario: Scenario, model_size: int) -> Waits:
    """All waits of a node in the network of a scenario.

    The deadline of a round is twice its modelled exchange, stretched by the time scale, plus the grace: that is what a
    dead member costs the others. Nobody models how long real training and moving models takes, so the grace covers both
    at the rate of a slow machine that several nodes share. An attempt is long enough to say everything twice and to
    move a block's models. A holder that a model is not uploaded to yet says so, so a fetch need not wait for that.
    """
    live = scenario.live
    num_members = scenario.clients.count
    moving_s = num_members * model_size / _BYTES_PER_S
    resend_s = _or(live.resend_s, max(_LEAST_RESEND_S, num_members / _MEMBERS_PER_RESEND_S))
    grace_s = _or(live.grace_s, _LEAST_GRACE_S + moving_s + _training_s(scenario, model_size))
    attempt_s = _or(live.attempt_s, 2.0 * resend_s + moving_s)
    timing = Timing(
        grace_ns=round(grace_s * NANO),
        attempt_ns=round(attempt_s * NANO),
        resend_ns=round(resend_s * NANO),
        time_scale=live.time_scale if live.mode is LiveMode.EMULATE else 1.0,
    )
    fetch_s = _or(live.fetch_s, max(_LEAST_FETCH_S, 2.0 * model_size / _BYTES_PER_S))
    return Waits(timing, fetch_s, _or(live.lease_s, _LEASE_S))


def _or(given: float | None, derived: float) -> float:
    return derived if given is None else given


def _training_s(scenario: Scenario, model_size: int) -> float:
    """What local training may really take."""
    learning = scenario.learning
    steps = scenario.compute.local_updates if learning.local_steps is None else learning.local_steps
    per_step = learning.batch if learning.unit is LocalUnit.UPDATES else _most(scenario.clients.samples)
    return float(steps * per_step * model_size / _WEIGHT_SIZE / _WEIGHTS_PER_S)


def _most(samples: PerClientWhole) -> float:
    """About the size of the largest data set."""
    match samples:
        case tuple():
            return max(samples)
        case Uniform() | Normal():
            return samples.high
        case Lognormal():
            return samples.median * exp(2.0 * samples.sigma)
        case Choice():
            return max(samples.values)
    return samples
