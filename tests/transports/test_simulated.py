"""A simulated network: rounds last what the cost model says, and everybody ends with the same valid chain."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chisquare

from bdfl.environment import draw_federation, draw_rounds
from bdfl.environment.draws import MiningRaces
from bdfl.experiment.simulation import draw_mining
from bdfl.learning.participation import draw_participation
from bdfl.learning.weights import Layout, decode_weights, encode_weights
from bdfl.ledger.block import SignedVote
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.genesis import conditions_of, make_genesis
from bdfl.ledger.verify import verify_chain
from bdfl.protocol.deadlines import MAX_BACK_OFF_NS
from bdfl.protocol.events import Commit, Send, Store
from bdfl.protocol.messages import Gossip
from bdfl.scenario import Scenario, override_scenario
from bdfl.transports.cost_model import ScenarioCostModel, simulated_timing
from bdfl.transports.interfaces import Observer, recover
from bdfl.transports.simulated import Ending, Network, simulated_signer
from tests.transports.simulated_nodes import make_nodes

LAYOUT = Layout(("w",), ((4,),))
INITIAL = encode_weights(np.zeros(4, np.float32), LAYOUT)
SECOND_NS = 10**9
ROUNDS = 6


def train(client, chain, model):
    """Something that depends on everything it should."""
    weights = decode_weights(model, LAYOUT)
    return encode_weights(weights * np.float32(0.5) + np.float32(client + chain.height), LAYOUT)


@dataclass
class Play:
    """A network that has run, and when its first node committed what."""

    network: Network
    commits: list

    @property
    def blocks(self):
        return [block for _, block in self.commits]

    @property
    def delays_ns(self):
        return np.diff([0, *(time_ns for time_ns, _ in self.commits)])


def make_network(*changes, rounds=ROUNDS, cache=None, train=train, **options):
    scenario = override_scenario(Scenario(rounds=rounds, seed=3), list(changes))
    federation = draw_federation(scenario)
    states = list(draw_rounds(scenario, federation))
    signers = [simulated_signer(scenario.seed, number) for number in range(federation.num_clients)]
    genesis = make_genesis(
        scenario,
        federation,
        draw_participation(scenario, federation),
        states[0],
        [signer.public_key for signer in signers],
        LAYOUT,
        INITIAL,
    )

    def find_conditions(round, client):
        return conditions_of(states[round - 1], client) if round <= rounds else None

    timing = simulated_timing(scenario)
    nodes = make_nodes(genesis, INITIAL, signers, timing, cache=cache, last_height=rounds)
    world = ScenarioCostModel(scenario, train, find_conditions)
    commits = []

    def note(number, block, certificate):
        if number == 0:
            commits.append((network.now_ns, block))

    voting_ns = round(scenario.protocol.voting_s * SECOND_NS)
    network = Network(nodes, world, on_commit=note, voting_ns=voting_ns, **options)
    return Play(network, commits)


def finish(play, rounds=ROUNDS):
    ending = play.network.run(lambda: all(node.height == rounds for node in play.network.nodes), max_events=10**6)
    assert ending is Ending.DONE
    return play


OVERHEAD = ("protocol.downlink_s=0.11", "protocol.verification_s=0.07", "protocol.voting_s=0.23")


@pytest.mark.parametrize("changes", [(), OVERHEAD, ("clients.count=3",), ("clients.count=3", *OVERHEAD)])
@pytest.mark.parametrize("scheduler", ["drc", "exact", "all"])
def test_a_round_lasts_what_the_cost_model_says(changes, scheduler):
    play = finish(make_network(f"scheduler.name={scheduler}", *changes))
    modelled_ns = [block.body.modelled.delay_ns for block in play.blocks]
    # One rounding to nanoseconds for training, upload, mining and overhead each.
    assert play.delays_ns == pytest.approx(modelled_ns, abs=4, rel=0)


def test_sampled_rounds_last_as_long_as_those_without_a_network():
    play = finish(make_network("mining.mode=sampled"))
    scenario = override_scenario(Scenario(rounds=ROUNDS, seed=3), ["mining.mode=sampled"])
    for delay_ns, block in zip(play.delays_ns, play.blocks, strict=True):
        mining_s, winner = draw_mining(scenario, block.header.height, np.array(block.body.schedule.mining_hz, float))
        assert block.header.proposer == winner
        assert delay_ns == pytest.approx(block.body.modelled.exchange_ns + mining_s * SECOND_NS, abs=4)


def test_rounds_in_which_nobody_can_train_back_off():
    play = finish(make_network("energy.budget_j=1e-9"))
    assert play.delays_ns.tolist() == [min(2**num_idle * SECOND_NS, MAX_BACK_OFF_NS) for num_idle in range(ROUNDS)]
    assert all(block.body.is_empty and not block.body.schedule.is_feasible for block in play.blocks)
    assert len({block.header.proposer for block in play.blocks}) > 1


@pytest.mark.parametrize("mode", ["quantile", "sampled"])
@pytest.mark.parametrize("attempt", [1, 2])
def test_who_mines_more_wins_more_often_in_proportion(mode, attempt):
    scenario = override_scenario(Scenario(), [f"mining.mode={mode}"])
    mining_hz = np.array([3e9, 0.0, 1e9, 2e9])
    rounds = [MiningRaces(scenario, round, mining_hz, 0.5).finding_s(attempt) for round in range(3000)]
    winners = np.bincount([int(np.argmin(finding_s)) for finding_s in rounds], minlength=4)
    assert winners[1] == 0
    chances = mining_hz[mining_hz > 0] / mining_hz.sum()
    assert chisquare(winners[mining_hz > 0], chances * len(rounds)).pvalue > 0.001
    if mode == "quantile":
        assert all(min(finding_s) == 0.5 for finding_s in rounds)


def test_the_races_of_a_round_are_the_same_whenever_they_are_asked():
    mining_hz = np.array([3e9, 1e9])
    early, late = (MiningRaces(Scenario(), 4, mining_hz, 0.5) for _ in range(2))
    in_order = [early.finding_s(1), early.finding_s(2), early.finding_s(3)]
    assert [late.finding_s(attempt) for attempt in (3, 2, 1)] == in_order[::-1]


@pytest.mark.parametrize(
    "changes", [(), ("ledger.quorum=bft",), ("ledger.work=argon2id", "ledger.cycles_per_hash=1e7")]
)
def test_all_nodes_end_with_the_same_chain_and_every_chain_verifies(changes):
    play = finish(make_network(*changes))
    nodes = play.network.nodes
    assert len({node.state.chain.tip for node in nodes}) == 1
    for node in nodes:
        verification = verify_chain(node.store)
        assert verification.is_valid, verification.failure
        assert verification.height == ROUNDS
        assert list(node.store.blocks()) == play.blocks


def test_the_same_scenario_gives_the_same_bytes_again():
    first, second = (finish(make_network("mining.mode=sampled")) for _ in range(2))
    assert first.blocks == second.blocks
    assert first.network.num_events == second.network.num_events
    certificates = [[node.store.certificate(ROUNDS) for node in play.network.nodes] for play in (first, second)]
    assert certificates[0] == certificates[1]


def test_what_nodes_share_changes_nothing():
    assert finish(make_network()).blocks == finish(make_network(cache=VerificationCache(max_entries=0))).blocks


def test_messages_as_bytes_change_nothing():
    assert finish(make_network()).blocks == finish(make_network(check_encoding=True)).blocks


def test_updates_that_diverged_are_declined_and_nobody_waits_for_them():
    play = finish(make_network(train=lambda client, chain, model: None if client < 4 else train(client, chain, model)))
    for delay_ns, block in zip(play.delays_ns, play.blocks, strict=True):
        assert delay_ns == pytest.approx(block.body.modelled.delay_ns, abs=4)
        assert {signed.update.client for signed in block.body.updates} == set(block.body.schedule.selected)
        assert all(signed.update.is_declined == (signed.update.client < 4) for signed in block.body.updates)


class Votes(Observer):
    """Votes kept and votes sent, in their order, by node."""

    def __init__(self):
        self.kept, self.sent, self.incarnations = {}, {}, []

    def did(self, now_ns, number, effect):
        if isinstance(effect, Store) and isinstance(getattr(effect.kept, "statement", None), SignedVote):
            self.kept.setdefault(number, []).append(effect.kept.statement)
        if isinstance(effect, Send) and isinstance(effect.message.content, Gossip):
            votes = effect.message.content.votes
            self.sent.setdefault(number, []).extend(vote for vote in votes if vote.vote.voter == number)

    def restarted(self, now_ns, number, state, store):
        self.incarnations.append((number, state, store.height))


@pytest.mark.parametrize("num_effects", range(0, 60, 3))
def test_a_node_that_crashes_anywhere_begins_again_from_its_store(num_effects):
    observer = Votes()
    play = make_network(rounds=4, observer=observer)
    network = play.network
    network.at(SECOND_NS, lambda: network.crash_later(2, num_effects, SECOND_NS // 10))
    finish(play, rounds=4)
    [(number, state, height)] = observer.incarnations
    assert number == 2
    assert state.chain.height == height
    assert set(observer.sent[2]) <= set(observer.kept[2])
    assert len({node.state.chain.tip for node in network.nodes}) == 1
    assert verify_chain(network.nodes[2].store).is_valid


@pytest.mark.parametrize("num_effects", range(0, 24, 3))
def test_who_crashes_while_its_update_is_on_its_way_never_signs_another(num_effects):
    tries = Counter()

    def train_anew(client, chain, model):
        tries[client, chain.height] += 1
        return encode_weights(
            decode_weights(train(client, chain, model), LAYOUT) + np.float32(tries[client, chain.height]), LAYOUT
        )

    play = make_network("scheduler.name=all", rounds=3, train=train_anew)
    network = play.network
    network.at(1, lambda: network.crash_later(2, num_effects, SECOND_NS // 10))
    finish(play, rounds=3)
    assert not any(node.state.evidence or node.state.chain.offenders for node in network.nodes)
    assert len({node.state.chain.tip for node in network.nodes}) == 1


def test_a_restart_changes_nothing_that_was_kept():
    play = finish(make_network())
    for node in play.network.nodes:
        again = recover(node.context, node.store)
        assert again.chain.tip == node.state.chain.tip
        assert dict(again.precommits).items() <= dict(node.state.precommits).items()  # late ones are not kept
        assert again.phase is node.state.phase


def test_what_happens_to_a_frozen_node_waits_for_it():
    play = make_network(rounds=3)
    network = play.network
    times = []

    class Watch(Observer):
        def stepped(self, now_ns, number, done):
            if number == 5:
                times.append(now_ns)

    network._observer = Watch()
    network.at(SECOND_NS // 2, lambda: network.freeze(5, SECOND_NS))
    finish(play, rounds=3)
    assert not any(SECOND_NS // 2 < time_ns < SECOND_NS * 3 // 2 for time_ns in times)
    assert any(time_ns == SECOND_NS * 3 // 2 for time_ns in times)


def test_a_slow_node_makes_the_round_longer():
    plain, slow = make_network("scheduler.name=all", rounds=1), make_network("scheduler.name=all", rounds=1)
    slow.network.nodes[1].slowness = 1.2
    assert finish(slow, rounds=1).delays_ns[0] > finish(plain, rounds=1).delays_ns[0]


class Lossy:
    """Loses a share of all messages for some time; the rest is late, and some come twice."""

    def __init__(self, share, until_ns):
        self._rng = np.random.default_rng(1)
        self._share, self._until_ns = share, until_ns

    def deliveries(self, now_ns, sender, receiver, message):
        if now_ns > self._until_ns:
            return (0,)
        late_ns = int(self._rng.exponential(0.05) * SECOND_NS)
        drawn = self._rng.random()
        return () if drawn < self._share else (late_ns, 2 * late_ns) if drawn > 0.9 else (late_ns,)


def test_lost_messages_are_said_again():
    play = finish(make_network(delivery=Lossy(0.3, 20 * SECOND_NS)))
    assert len({node.state.chain.tip for node in play.network.nodes}) == 1
    assert verify_chain(play.network.nodes[3].store).is_valid


def test_a_network_can_be_stopped_by_time_and_events_and_goes_on():
    play, whole = make_network(), finish(make_network())
    assert play.network.run(until_ns=SECOND_NS) is Ending.TIME
    assert play.network.now_ns == SECOND_NS
    assert play.network.run(max_events=10) is Ending.EVENTS
    assert finish(play).blocks == whole.blocks
    assert play.network.run(until_ns=100 * SECOND_NS) is Ending.IDLE


def test_every_commit_is_told_once():
    commits = []

    class Commits(Observer):
        def did(self, now_ns, number, effect):
            if isinstance(effect, Commit):
                commits.append((number, effect.block.header.height))

    play = finish(make_network(observer=Commits()))
    assert sorted(commits) == [(number, height) for number in range(8) for height in range(1, ROUNDS + 1)]
    assert [block.header.height for block in play.blocks] == list(range(1, ROUNDS + 1))
