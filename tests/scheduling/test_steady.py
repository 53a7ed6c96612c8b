"""`steady`: prices at the maximum of their dual, near the least delay of the run, everybody served, and robust."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from bdfl.errors import InvalidProblem
from bdfl.experiment.bounds import bound_path
from bdfl.experiment.simulation import draw_run, play, play_rounds, round_problems
from bdfl.scenario import Scenario, override_scenario
from bdfl.scheduling.checker import evaluate
from bdfl.scheduling.exact import best_frequencies, exact, tabulate_sets
from bdfl.scheduling.steady import SteadyMemory, _solve_dual, steady

SMALL = override_scenario(Scenario(name="small", rounds=40), ["clients.count=5"])
RAYLEIGH = override_scenario(Scenario(rounds=100), ["radio.fading.kind=rayleigh"])
ALIKE = override_scenario(Scenario(rounds=40), ["radio.fading.kind=none", "participation.spread=0"])


@pytest.mark.parametrize("changes", [[], ["mining.max_hz=1.2e9"], ["radio.fading.kind=rayleigh"]])
def test_the_table_has_every_set_with_its_least_delay(changes):
    scenario = override_scenario(SMALL, changes)
    problem = replace(round_problems(scenario, draw_run(scenario))[0], reachable=np.arange(5) != 2)
    members, delay_s = tabulate_sets(problem)
    assert len(members) == 4 + 1  # three or four of the four reachable
    for chosen, least_s in zip(members, delay_s, strict=True):
        assert least_s == pytest.approx(evaluate(problem, best_frequencies(problem, chosen)).delay_s, rel=1e-9)


def test_prices_are_at_the_maximum_of_the_dual():
    """A general optimiser, from the same start, of the dual written down anew."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        sets = rng.random((7, 12, 4)) < 0.5
        memory = replace(remember(4), delay_s=rng.uniform(0.8, 0.9, (7, 12)), members=sets, price_s=np.full(4, 0.01))
        owed, usual_s, rate = rng.uniform(0.1, 0.9, 4), rng.uniform(0.005, 0.02, 4), rng.uniform(0.2, 0.7, 4)

        def loss(price_s, memory=memory, owed=owed, usual_s=usual_s, rate=rate):
            soft = 0.01 * np.log(np.exp((memory.members @ price_s - memory.delay_s) / 0.01).sum(axis=1)).sum()
            excess = (price_s - usual_s) / usual_s + np.log(rate / (1 - rate))
            return soft + 3.0 * np.sum(usual_s * np.logaddexp(0.0, excess)) - (7 + 3.0) * price_s @ owed

        found = _solve_dual(memory, owed, usual_s, rate, imagined=3.0, softness_s=0.01)
        best = minimize(
            loss, found, bounds=[(0.0, None)] * 4, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12}
        )
        assert loss(found) <= best.fun + 1e-9
        assert np.all(found >= 0.0)


def remember(num_clients):
    """Memory after a round of the small scenario's kind."""
    scenario = override_scenario(Scenario(rounds=1), [f"clients.count={num_clients}"])
    memory = steady(round_problems(scenario, draw_run(scenario))[0]).memory
    assert isinstance(memory, SteadyMemory)
    return memory


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("scenario", "most_percent"), [(Scenario(rounds=100), 0.6), (RAYLEIGH, 2.5)])
def test_a_run_is_near_its_least_delay_and_serves_everybody(scenario, most_percent, seed):
    scenario = override_scenario(scenario, [f"seed={seed}"])
    draws = draw_run(scenario)
    run = play(scenario, steady, draws)
    assert 100.0 * (run.mean_delay_s / bound_path(scenario, draws).bound_s - 1.0) <= most_percent
    assert run.worst_shortfall <= 0.01 + 1e-9


@pytest.mark.parametrize("scenario", [RAYLEIGH, ALIKE], ids=["rayleigh", "alike"])
def test_errors_of_rounding_do_not_grow(scenario):
    """Members of a chain compute with different last digits, and must choose the same sets and frequencies."""
    draws = draw_run(scenario)
    rng = np.random.default_rng(0)
    memories = [None, None]
    queue = np.zeros(8)
    for problem in round_problems(scenario, draws):
        noisy = problem.gain * (1 + 1e-13 * rng.standard_normal(8))
        decisions = [
            steady(replace(problem, queue=queue, memory=memory, gain=gain))
            for memory, gain in zip(memories, (problem.gain, noisy), strict=True)
        ]
        np.testing.assert_array_equal(decisions[0].selected, decisions[1].selected)
        for name in ("cpu_hz", "mining_hz"):
            np.testing.assert_allclose(getattr(decisions[0], name), getattr(decisions[1], name), rtol=1e-8)
        memories = [decision.memory for decision in decisions]
        np.testing.assert_allclose(memories[0].price_s, memories[1].price_s, rtol=1e-5, atol=1e-8)
        queue = np.maximum(queue + problem.participation_rate - decisions[0].selected, 0.0)


def test_an_update_that_did_not_arrive_is_still_owed():
    draws = draw_run(SMALL)
    debts = []
    for delivers in (True, False):
        for planned in play_rounds(SMALL, steady, draws):
            last = planned.decision.memory
            planned.settle(planned.decision.selected & (delivers | (np.arange(5) > 0)))
        debts.append(last.debt)
    rate = draws.participation_rate[0]
    assert debts[0][0] < 2.0
    assert debts[1][0] == pytest.approx(39 * rate)  # before the last of 40 rounds


def test_an_infeasible_round_owes_everybody_and_forgets_nothing():
    draws = draw_run(SMALL)
    first, second, third, *_ = round_problems(SMALL, draws)
    before = steady(first).memory
    dark = steady(replace(second, energy_budget_j=np.zeros(5), memory=before, queue=second.queue))
    assert not dark.is_feasible
    assert dark.reason == exact(replace(second, energy_budget_j=np.zeros(5))).reason
    after = steady(replace(third, memory=dark.memory, queue=dark.memory.queue + third.participation_rate)).memory
    np.testing.assert_allclose(after.debt, dark.memory.debt + third.participation_rate)
    assert len(after.delay_s) == len(before.delay_s) + 1


@pytest.mark.parametrize("rounds", [0, 30])
def test_without_a_known_end_clients_are_served_within_a_window(rounds):
    scenario = override_scenario(SMALL, ["rounds=150"])
    run = play(scenario, lambda problem: steady(problem, rounds=rounds, window=30), draw_run(scenario))
    assert run.worst_shortfall <= 0.05


def test_more_than_a_dozen_clients_are_served_too():
    scenario = override_scenario(Scenario(rounds=100), ["clients.count=20"])
    run = play(scenario, steady, draw_run(scenario))
    assert run.worst_shortfall <= 0.03


def test_tradeoff_and_longer_queues_do_not_matter_at_the_start_of_a_run_without_debts():
    problem = round_problems(SMALL, draw_run(SMALL))[0]
    np.testing.assert_array_equal(steady(problem).cpu_hz, steady(replace(problem, tradeoff=1e4)).cpu_hz)


def test_the_memory_of_another_is_refused():
    problem = round_problems(SMALL, draw_run(SMALL))[0]
    with pytest.raises(InvalidProblem, match="that of steady or None expected"):
        steady(replace(problem, memory=3))
    with pytest.raises(InvalidProblem, match="of 4 clients, the problem has 5"):
        steady(replace(problem, memory=remember(4)))
