"""Emulated work: real results, at the times and under the conditions of a simulated run."""

import queue
import threading
import time

import numpy as np
import pytest

from bdfl.environment import draw_federation, draw_rounds
from bdfl.ledger.block import header_seal
from bdfl.ledger.chain import apply_block
from bdfl.ledger.genesis import conditions_of
from bdfl.ledger.proof_of_work import is_worked
from bdfl.ledger.rules import make_header
from bdfl.scenario import Availability, Mining, MiningMode, Protocol
from bdfl.transports.cost_model import ScenarioCostModel
from bdfl.transports.live.work import _REACHING_NS, EmulatedWork, draw_conditions
from tests.ledger.small_federation import ROUNDS, found_federation, replace, small_scenario
from tests.live.idle_training import IdleTraining

PATIENCE_S = 240.0
SCALE = 0.1
NEVER = 1e6  # a scale at which nothing ends
SCENARIO = small_scenario(protocol=Protocol(downlink_s=0.05, verification_s=0.02, voting_s=0.1))


@pytest.fixture(scope="module")
def small():
    return found_federation(SCENARIO)


@pytest.fixture(scope="module")
def chain(small):
    return small.start()


@pytest.fixture(scope="module")
def header(small, chain):
    return make_header(chain, 1, client_of(chain), small.body(chain), 0)


@pytest.fixture
def open_work(chain):
    works = []

    def open(training=None, scenario=SCENARIO, client=None, **options):
        options.setdefault("time_scale", SCALE)
        training = IdleTraining() if training is None else training
        works.append(EmulatedWork(client_of(chain) if client is None else client, scenario, training, **options))
        return works[-1]

    yield open
    for work in works:
        work.close()
        assert work.training.is_closed


def client_of(chain):
    return chain.schedule.selected[-1]


def world_of(small, scenario=SCENARIO):
    def find_conditions(round, client):
        return conditions_of(small.rounds[round - 1], client) if round <= ROUNDS else None

    return ScenarioCostModel(scenario, lambda client, chain, model: model, find_conditions)


def wait_for(order, *arguments):
    """What comes, and when."""
    answers = queue.SimpleQueue()
    order(*arguments, lambda answer: answers.put((answer, time.monotonic_ns())))
    return answers.get(timeout=PATIENCE_S)


def test_a_trained_model_is_told_when_the_modelled_time_is_over(small, chain, open_work):
    work, training_ns = open_work(), world_of(small).training_ns(client_of(chain), chain)
    begun_ns = time.monotonic_ns()
    model, told_ns = wait_for(work.train, chain, b"given")
    assert model == b"trained"
    assert work.training.asked == [(b"given", 1)]
    assert training_ns > 0
    assert told_ns - begun_ns >= SCALE * training_ns


def test_a_training_that_takes_longer_is_told_at_once(chain, open_work):
    work = open_work(IdleTraining(duration_ns=777, answers_at_once=False))
    answers = queue.SimpleQueue()
    work.train(chain, b"", answers.put)
    time.sleep(SCALE * work.modelled(chain).training_ns / 1e9)
    assert answers.empty()
    work.training.answer()
    assert answers.get(timeout=PATIENCE_S) == b"trained"
    assert work.spent(1).training_ns == 777
    assert work.spent(2).training_ns == 0


def test_a_training_that_failed_gives_nothing_and_says_why(chain, open_work):
    heard = []
    work = open_work(IdleTraining(failure="out of memory"), on_failure=heard.append)
    assert wait_for(work.train, chain, b"")[0] is None
    assert heard == ["out of memory"]


def test_a_stopped_training_is_never_told(chain, open_work):
    work, told = open_work(time_scale=NEVER), threading.Event()
    work.train(chain, b"", lambda model: told.set())
    work.stop_training()
    work.time_scale = 0.0
    assert wait_for(work.train, chain, b"")[0] == b"trained"
    assert not told.is_set()
    assert work.training.num_stops == 1


def test_a_nonce_is_real_and_told_when_the_modelled_time_is_over(small, chain, header, open_work):
    work, world = open_work(), world_of(small)
    modelled_ns = world.finding_ns(client_of(chain), chain, 1) + world.voting_ns(chain)
    begun_ns = time.monotonic_ns()
    nonce, told_ns = wait_for(work.mine, chain, header)
    assert is_worked(small.genesis.law.work, header_seal(header), nonce, header.difficulty)
    assert told_ns - begun_ns >= SCALE * modelled_ns
    assert work.spent(1).hashing_ns > 0


def test_a_better_header_does_not_delay_the_search(chain, header, open_work):
    work = open_work()
    work.mine(chain, header, lambda nonce: None)
    first = work._search
    time.sleep(0.01)
    work.mine(chain, replace(header, body=bytes(32)), lambda nonce: None)
    assert work._search == first
    work.mine(chain, replace(header, attempt=2), lambda nonce: None)
    assert work._search != first


def test_a_search_begins_when_the_own_update_is_there_for_all(small, chain, header, open_work):
    work, world = open_work(), world_of(small)
    before_ns = time.monotonic_ns()
    upload_ns = work.upload(chain)
    assert upload_ns == round(SCALE * world.upload_ns(client_of(chain), chain)) > 0
    work.mine(chain, header, lambda nonce: None)
    modelled_ns = world.finding_ns(client_of(chain), chain, 1) + world.voting_ns(chain)
    assert work._search[2] >= before_ns + upload_ns + round(SCALE * modelled_ns)


def test_a_stopped_search_is_never_told(chain, header, open_work):
    work, told = open_work(time_scale=NEVER), threading.Event()
    work.mine(chain, header, lambda nonce: told.set())
    work.stop_mining()
    work.time_scale = 0.0
    assert wait_for(work.mine, chain, replace(header, attempt=2))[0]
    assert not told.is_set()


def test_only_the_first_to_find_a_block_tells_it_at_once(small, chain, header, open_work):
    world = world_of(small)
    finding_ns = [world.finding_ns(client, chain, 1) for client in range(chain.num_members)]
    first, last = finding_ns.index(min(finding_ns)), finding_ns.index(max(finding_ns))
    dues = []
    for client in (first, last):
        work, begun_ns = open_work(client=client), time.monotonic_ns()
        work.mine(chain, header, lambda nonce: None)
        dues.append(work._search[2] - begun_ns - round(SCALE * (finding_ns[client] + world.voting_ns(chain))))
    assert 0 <= dues[0] < dues[1]
    assert dues[1] >= _REACHING_NS


def test_with_a_scale_of_zero_nothing_waits(small, chain, header, open_work):
    world = world_of(small)
    first = min(range(chain.num_members), key=lambda client: world.finding_ns(client, chain, 1))
    work, told = open_work(time_scale=0.0, client=first), []
    assert work.upload(chain) == 0
    work.train(chain, b"", told.append)
    assert told == [b"trained"]  # by the very call, as this training answers at once
    work.mine(chain, header, lambda nonce: None)
    assert work._search[2] == 0


def test_the_scenarios_own_scale_counts_unless_another_is_given(open_work):
    assert open_work(time_scale=None).time_scale == SCENARIO.live.time_scale == 20.0


def test_conditions_and_receipts_are_those_of_a_simulated_run(small, chain, open_work):
    work, world, tip, before = open_work(), world_of(small), None, chain
    for _ in range(4):
        found = work.measure(chain, tip)
        assert found == world.measure(client_of(small.start()), chain, tip)
        assert (found[1] is None) == (tip is None)
        tip = small.block(chain, small.body(chain, () if tip is None else small.certificate(before, tip.digest)))
        before, chain = chain, apply_block(chain, tip, small.cache)


def test_conditions_can_be_asked_for_in_any_order_and_end_with_the_scenario(small):
    for client in range(small.num_members):
        drawn = draw_conditions(SCENARIO, client)
        for round in (1, 2, 3, ROUNDS, 2, 7, 1):
            assert drawn(round, client) == conditions_of(small.rounds[round - 1], client)
        assert drawn(ROUNDS + 1, client) is None
        assert drawn(3, client) == conditions_of(small.rounds[2], client)


def test_who_is_away_in_a_round_has_no_conditions_for_it():
    coming = replace(SCENARIO, availability=Availability(leave_probability=0.4, return_probability=0.4))
    states = list(draw_rounds(coming, draw_federation(coming)))
    there = np.array([state.available for state in states])
    assert 0 < there.sum() < there.size
    for client in range(coming.clients.count):
        drawn = draw_conditions(coming, client)
        assert [drawn(state.round, client) is not None for state in states] == there[:, client].tolist()


def test_who_joined_later_finds_what_it_joined_with(small, chain):
    few = small_scenario(count=2)
    work = EmulatedWork(3, few, IdleTraining(), time_scale=SCALE)
    assert work.measure(chain, None) == (small.genesis.members[3].conditions, None)
    work.close()


def test_the_modelled_round_is_the_one_the_chain_promises(small, chain, open_work):
    modelled = open_work().modelled(chain)
    promised = small.body(chain).modelled
    assert modelled.exchange_ns == pytest.approx(promised.exchange_ns, abs=2)
    assert modelled.delay_ns == pytest.approx(promised.delay_ns, abs=4)
    assert modelled.rest_ns == 170_000_000
    assert modelled.delay_ns == modelled.exchange_ns + modelled.mining_ns + modelled.rest_ns


def test_a_sampled_round_is_modelled_with_the_drawn_mining_time(small, chain, open_work):
    sampled = replace(SCENARIO, mining=Mining(difficulty=3e7, mode=MiningMode.SAMPLED))
    work, world = open_work(scenario=sampled), world_of(small, sampled)
    first_ns = min(world.finding_ns(client, chain, 1) for client in range(small.num_members))
    assert work.modelled(chain).mining_ns == first_ns - 70_000_000  # without downlink and verification
