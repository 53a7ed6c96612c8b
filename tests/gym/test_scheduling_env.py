"""The environment: Gymnasium's rules, the core's own objective as the reward, and actions that never break a law."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from bdfl.experiment import simulate
from bdfl.gym import FREQUENCIES_ID, SET_ID, Form, Frequencies, InvalidEnvironment, SchedulingEnv
from bdfl.gym.env import COLUMNS, decide_action, project_set
from bdfl.scenario import Scenario
from bdfl.scheduling.checker import evaluate, find_violations
from bdfl.scheduling.conformance import draw_instances, find_faults
from bdfl.scheduling.drc import drc, start_round
from bdfl.scheduling.exact import exact

SMALL = Scenario(name="small", rounds=12)


def rewards_of(env, decide, seed):
    """Rewards of an episode whose rounds `decide` is asked about; it returns what `env.step` or `play` returned."""
    env.reset(seed=seed)
    rewards, over = [], False
    while not over:
        _, reward, _, over, _ = decide(env)
        rewards.append(reward)
    return np.array(rewards)


def objectives_of(name, seed):
    scheduler = SMALL.scheduler.__class__(name=name, tradeoff=SMALL.scheduler.tradeoff)
    return simulate(Scenario(name="small", rounds=12, seed=seed, scheduler=scheduler)).objective


@pytest.mark.parametrize("name", [SET_ID, FREQUENCIES_ID])
def test_an_agent_of_stable_baselines_learns_on_it_as_it_is(name):
    from stable_baselines3 import PPO

    env = gymnasium.make(name, scenario=SMALL)
    agent = PPO("MlpPolicy", env, n_steps=24, batch_size=12, n_epochs=1, gamma=0.0, seed=1, device="cpu")
    agent.learn(48)
    assert agent.num_timesteps == 48
    observed, _ = env.reset(seed=1)
    action, _ = agent.predict(observed, deterministic=True)
    assert env.action_space.contains(action)
    assert np.isfinite(env.step(action)[1])


@pytest.mark.parametrize(
    ("name", "options"), [(SET_ID, {}), (SET_ID, {"frequencies": "drc"}), (FREQUENCIES_ID, {"scenario": "minimal"})]
)
def test_gymnasium_finds_nothing_to_complain_about(name, options):
    env = gymnasium.make(name, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        env.reset(seed=1)
        env.step(env.action_space.sample())
    env.close()


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize(("name", "scheduler"), [("drc", drc), ("exact", exact)])
def test_a_scheduler_played_through_the_environment_earns_minus_what_simulate_records_to_the_bit(name, scheduler, seed):
    env = SchedulingEnv(SMALL)
    rewards = rewards_of(env, lambda env: env.play(scheduler(env.problem)), seed)
    np.testing.assert_array_equal(rewards, -objectives_of(name, seed))
    np.testing.assert_array_equal(env.record.objective, objectives_of(name, seed))
    assert env.record.scheduler == "agent"


def test_the_sets_of_drc_as_actions_earn_minus_its_objective_to_the_bit():
    env = SchedulingEnv(SMALL, frequencies="drc")
    rewards = rewards_of(env, lambda env: env.step(drc(env.problem).selected.astype(np.int8)), 3)
    np.testing.assert_array_equal(rewards, -objectives_of("drc", 3))


def test_the_sets_of_exact_as_actions_earn_minus_its_objective():
    env = SchedulingEnv(SMALL)
    rewards = rewards_of(env, lambda env: env.step(exact(env.problem).selected.astype(np.int8)), 3)
    np.testing.assert_allclose(rewards, -objectives_of("exact", 3), rtol=1e-9)


def test_the_frequencies_of_drc_as_actions_earn_nearly_what_it_does():
    env = SchedulingEnv(SMALL, form="frequencies")

    def act(env):
        decision = drc(env.problem)
        asked = [np.where(decision.selected, 1.0, -1.0)]
        for given, initial in (
            (decision.cpu_hz, env.problem.initial_cpu_hz),
            (decision.mining_hz, env.problem.initial_mining_hz),
        ):
            asked.append(np.log(np.where(given > 0, given, initial) / initial) / np.log(4.0))
        action = np.concatenate(asked)
        assert np.abs(action).max() <= 1.0  # all of it can be asked for
        return env.step(action.astype(np.float32))

    np.testing.assert_allclose(rewards_of(env, act, 5), -objectives_of("drc", 5), rtol=1e-6)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("frequencies", list(Frequencies))
def test_no_action_whatever_breaks_a_constraint(form, frequencies):
    rng = np.random.default_rng(0)
    played = 0
    for instance in draw_instances(rng, 80, max_clients=12):
        problem = instance.problem
        num = problem.num_clients
        action = rng.integers(0, 2, num) if form is Form.SET else rng.uniform(-1, 1, 3 * num)
        decision = decide_action(problem, form, frequencies, action)
        if form is Form.SET and frequencies is Frequencies.EXACT:
            assert find_violations(problem, decision) == [], instance.description
        else:
            assert list(find_faults(problem, decision)) == [], instance.description
        if decision.is_feasible:
            played += 1
            assert np.isfinite(evaluate(problem, decision).objective)
    assert played > 40


def test_whoever_cannot_train_is_left_out_and_the_quickest_fill_up():
    earliest_s = np.array([3.0, np.inf, 1.0, 2.0, 2.0])
    wanted = np.array([True, True, False, False, False])
    np.testing.assert_array_equal(project_set(wanted, earliest_s, 1), [True, False, False, False, False])
    np.testing.assert_array_equal(project_set(wanted, earliest_s, 3), [True, False, True, True, False])


def test_an_action_that_had_to_be_changed_says_so():
    env = SchedulingEnv(SMALL)
    env.reset(seed=0)
    nobody = np.zeros(8, dtype=np.int8)
    _, _, _, _, info = env.step(nobody)
    assert info["changed"] == np.count_nonzero(info["selected"]) == SMALL.clients.min_selected


def test_the_same_seed_gives_the_same_episode_and_another_one_another():
    def episode(seed):
        env = SchedulingEnv(SMALL)
        seen = [env.reset(seed=seed)[0]]
        env.action_space.seed(1)
        for _ in range(12):
            observation, reward, *_ = env.step(env.action_space.sample())
            seen.append(np.append(observation, reward))
        follow, info = env.reset()
        return np.concatenate([*seen, follow]), info["seed"]

    (first, next_seed), (again, same_seed), (other, _) = episode(4), episode(4), episode(5)
    np.testing.assert_array_equal(first, again)
    assert next_seed == same_seed
    assert not np.array_equal(first, other)


def test_an_observation_shows_channels_queues_budgets_and_who_can_train():
    env = SchedulingEnv(SMALL)
    observation, _ = env.reset(seed=2)
    channel, queue, budget, speed = observation.reshape(len(COLUMNS), 8)
    order = np.argsort(env.problem.gain)
    assert (np.diff(channel[order]) >= 0).all()
    np.testing.assert_array_equal(queue, 0.0)
    np.testing.assert_allclose(budget, 0.5, atol=0.4)
    assert (speed > 0).all()
    env.step(np.ones(8, dtype=np.int8))
    np.testing.assert_allclose(env._observe().reshape(4, 8)[1], env.problem.queue / (1 + env.problem.queue), rtol=1e-6)


def test_an_infeasible_round_passes_with_no_reward_and_longer_queues():
    poor = Scenario(name="poor", rounds=2, energy=Scenario().energy.__class__(budget_j=1e-9))
    env = SchedulingEnv(poor)
    env.reset(seed=0)
    assert start_round(env.problem).reason is not None
    before = env.problem.queue
    observation, reward, terminated, truncated, info = env.step(np.ones(8, dtype=np.int8))
    assert (reward, terminated, truncated, info["feasible"]) == (0.0, False, False, False)
    assert (env.problem.queue > before).all()
    assert observation in env.observation_space


def test_an_episode_ends_with_the_run_and_wants_a_reset():
    env = SchedulingEnv(SMALL, rounds=2)
    with pytest.raises(ResetNeeded):
        env.step(np.ones(8, dtype=np.int8))
    env.reset(seed=0)
    assert [env.step(np.ones(8, dtype=np.int8))[3] for _ in range(2)] == [False, True]
    with pytest.raises(ResetNeeded):
        env.step(np.ones(8, dtype=np.int8))
    assert env.record.num_rounds == 2


def test_mistakes_are_one_line_with_what_is_expected():
    with pytest.raises(InvalidEnvironment, match="form: 'pairs' given, expected one of set, frequencies"):
        SchedulingEnv(SMALL, form="pairs")
    with pytest.raises(InvalidEnvironment, match="frequencies: 'best' given, expected one of exact, drc"):
        SchedulingEnv(SMALL, frequencies="best")
    env = SchedulingEnv(SMALL)
    env.reset(seed=0)
    with pytest.raises(InvalidEnvironment, match=r"action: shape \(3,\) given, \(8,\) expected"):
        env.step(np.ones(3, dtype=np.int8))
