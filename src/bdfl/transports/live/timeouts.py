"""Timeouts of a live node, derived from the scenario where it does not set them."""

from dataclasses import dataclass
from math import exp

from bdfl.learning.training import num_local_steps
from bdfl.ledger.costs import NANO
from bdfl.protocol.state import Timing
from bdfl.scenario import Scenario
from bdfl.scenario.distributions import Choice, Lognormal, Normal, PerClientWhole, Uniform
from bdfl.scenario.schema import LiveMode
from bdfl.scenario.schema_learning import LocalUnit

_LEAST_GRACE_S = 5.0
_LEAST_RESEND_S = 1.0
_MEMBERS_PER_RESEND_S = 16  # resends are all-to-all: less often with more members
_LEAST_FETCH_S = 2.0
_LEASE_S = 5.0
_BYTES_PER_S = 5e6  # transferred and checked, at least, on a busy machine
_WEIGHTS_PER_S = 5e7  # weights times samples trained, at least, on a busy machine
_WEIGHT_SIZE = 4  # bytes


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of a live node."""

    timing: Timing
    fetch_s: float
    lease_s: float


def live_timing(scenario: Scenario, model_size: int) -> Timing:
    """Return the timing of the protocol core; `model_size` in bytes."""
    return live_waits(scenario, model_size).timing


def live_waits(scenario: Scenario, model_size: int) -> Timeouts:
    """Return all timeouts of a node in a scenario's network; `model_size` in bytes.

    The deadline of a round is twice its modelled exchange, times the time scale, plus the grace: the cost of a dead
    member. Real training and transfer times are not modelled, so the grace covers both at the rate of a slow machine
    shared by several nodes. An attempt allows two resends and the transfer of a block's models. A fetch need not wait
    for a holder's own upload: the holder answers that it is not ready yet.
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
    return Timeouts(timing, fetch_s, _or(live.lease_s, _LEASE_S))


def _or(given: float | None, derived: float) -> float:
    return derived if given is None else given


def _training_s(scenario: Scenario, model_size: int) -> float:
    """Return an upper estimate of real training time (s)."""
    learning = scenario.learning
    steps = num_local_steps(scenario)
    per_step = learning.batch if learning.unit is LocalUnit.UPDATES else _most(scenario.clients.samples)
    return float(steps * per_step * model_size / _WEIGHT_SIZE / _WEIGHTS_PER_S)


def _most(samples: PerClientWhole) -> float:
    """Return the approximate size of the largest data set."""
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
