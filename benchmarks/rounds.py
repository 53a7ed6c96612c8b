"""Rounds to measure schedulers on, of any size and reproducible from (seed, family, size, number)."""

from dataclasses import replace
from enum import StrEnum

import numpy as np

from bdfl.compute import mining_work, training_cycles
from bdfl.environment import draw_fading
from bdfl.experiment.simulation import draw_run, round_problems
from bdfl.radio import channel_gain
from bdfl.scenario import Clients, Scenario
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.problem import RoundProblem, make_problem
from bdfl.types import PerClient

PAPER_TRADEOFF = 50.0  # where `exact` does best in the paper's scenario
_NUM_TRADEOFFS = 3  # V of a large round goes through this many values


class Family(StrEnum):
    """What the clients of a round are like."""

    PAPER = "paper"  # identical clients, Rician channels, calibrated values included
    CELL = "cell"  # the paper's values spread by a factor of a few, clients anywhere around the access point
    WIDE = "wide"  # different by orders of magnitude, as in the tests
    CAPPED = "wide, caps"  # and most clients with caps on both frequencies


def draw_round(family: Family, num_clients: int, number: int, seed: int) -> RoundProblem:
    """Round `number` of a family.

    `paper` is a round of the paper's scenario at V = 50 with queues uniform up to 2, about what they reach there. The
    others grow with the number of clients U so that the choice stays one: m = U/10; A in proportion to U, as a chain
    retargets its difficulty, else mining would take no time at all; V in proportion to U, as the queues' sum grows.
    V/U takes three values in turn, at which from about a tenth (the least m allows) to three quarters are selected.
    Up to ten clients `wide` is drawn as in the tests: m, V (0.01 to 1,000) and A too.
    """
    rng = np.random.default_rng([seed, list(Family).index(family), num_clients, number])
    if family is Family.PAPER:
        return _draw_paper_round(rng, num_clients, number, seed)
    if family is Family.CELL:
        return _draw_cell_round(rng, num_clients, number)
    with_caps = family is Family.CAPPED
    if num_clients <= 10:
        return draw_problem(rng, num_clients, with_caps=with_caps)
    drawn = draw_problem(
        rng,
        num_clients,
        min_clients=num_clients // 10,
        tradeoff=_tradeoff_per_client(0.1, 3.0, number) * num_clients,
        with_caps=with_caps,
    )
    return replace(drawn, work_cycles=drawn.work_cycles * num_clients / 8.0)


def _tradeoff_per_client(low: float, high: float, number: int) -> float:
    return float(np.geomspace(low, high, _NUM_TRADEOFFS)[number % _NUM_TRADEOFFS])


def _draw_paper_round(rng: np.random.Generator, num_clients: int, number: int, seed: int) -> RoundProblem:
    scenario = Scenario(rounds=number + 1, seed=seed, clients=Clients(count=num_clients))
    problem = round_problems(scenario, draw_run(scenario))[number]
    return replace(problem, tradeoff=PAPER_TRADEOFF, queue=rng.uniform(0.0, 2.0, num_clients))


def _draw_cell_round(rng: np.random.Generator, num_clients: int, number: int) -> RoundProblem:
    paper = Scenario()  # its defaults are the paper's, and what was calibrated to it
    radio, compute = paper.radio, paper.compute

    def spread(low: float, high: float) -> PerClient:
        return rng.uniform(low, high, num_clients)

    gain = channel_gain(
        radio.reference_gain,
        draw_fading(rng, radio.fading, num_clients),
        500.0 * np.sqrt(spread(0.0, 1.0)),  # uniform in a disc of 500 m
        radio.reference_distance_m,
        radio.path_loss_exponent,
    )
    return make_problem(
        min_clients=max(num_clients // 10, 1),
        tradeoff=_tradeoff_per_client(0.3, 6.0, number) * num_clients,
        work_cycles=mining_work(paper.mining.difficulty, paper.mining.miss_probability) * num_clients / 8.0,
        bandwidth_hz=radio.bandwidth_hz,
        noise_w_per_hz=radio.noise_w_per_hz,
        queue=spread(0.0, 2.0),
        cycles=training_cycles(
            np.full(num_clients, compute.cycles_per_sample), compute.local_updates, spread(1000.0, 5000.0)
        ),
        capacitance=compute.capacitance * spread(0.5, 2.0),
        energy_budget_j=spread(0.2, 0.8),
        gain=gain,
        power_w=spread(0.1, 0.4),
        model_bits=spread(0.5e6, 2e6),
    )
