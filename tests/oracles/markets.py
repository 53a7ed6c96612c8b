"""Random rounds as the solvers' inner parts see them: markets of clients that all can train."""

from dataclasses import replace

import numpy as np

from bdfl.scheduling.allocation import Market
from bdfl.scheduling.conformance import draw_problem
from bdfl.scheduling.mining_curves import fixed_power_curves, idle_roots
from bdfl.scheduling.problem import restrict_problem


def market_of(problem, curves_of=fixed_power_curves):
    """The market of a problem whose clients are all reachable."""
    return Market(
        curves=curves_of(problem),
        idle=idle_roots(problem),
        caps=problem.mining_max_hz if np.isfinite(problem.mining_max_hz).any() else None,
        queue=problem.queue,
        tradeoff=problem.tradeoff,
        work_cycles=problem.work_cycles,
        min_clients=problem.min_clients,
    )


def draw_able_problem(rng, num_clients, *, with_caps=False, curves_of=fixed_power_curves, **choices):
    """A random round of clients that can all train."""
    problem = draw_problem(rng, 4 * num_clients, with_caps=with_caps, **({"min_clients": 1} | choices))
    able = np.flatnonzero(np.isfinite(curves_of(problem).least_s))[:num_clients]
    assert len(able) == num_clients
    return restrict_problem(problem, np.isin(np.arange(problem.num_clients), able))


def without_caps(problem):
    """The same problem with all caps lifted."""
    unlimited = np.full(problem.num_clients, np.inf)
    return replace(problem, cpu_max_hz=unlimited, mining_max_hz=unlimited)
