"""Hostile bytes: structure-aware mutations of every kind of record are refused, or are the encoding of what comes out.

`make fuzz` tries fifty times as many.
"""

import multiprocessing
import resource
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from bdfl.encoding import INT_LIMIT, BadEncoding, decode
from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import MAX_BUDGET_PJ, Block, Conditions, Genesis, Modelled, SignedVote
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain_params import read_params
from bdfl.ledger.costs import NANO
from bdfl.ledger.merkle import MerkleProof
from bdfl.ledger.schedule import Prospect, assess, find_candidates, plan_round, validate_schedule
from bdfl.protocol.messages import Gossip, Message, decode_message
from benchmarks.ledger.valid_chain import CONDITIONS, SMALL, example_genesis, example_weights
from campaigns.fuzz.decoding import MAX_SIZE, make_mutator, try_decoding
from campaigns.fuzz.judging import judged_kinds, try_judging
from campaigns.fuzz.records import record_kinds

NUM_MUTATIONS = 20_000
SCHEDULERS = ("all", "random", "round-robin", "channel-best", "drc", "exact", "exact-power")
EXTREMES = (0, 1, 2, 10**6, 10**9, 10**12, 10**13, 10**15, 10**18, INT_LIMIT // 2, INT_LIMIT)
BUDGETS = tuple(value for value in EXTREMES if value <= MAX_BUDGET_PJ)
SPARE_MEMORY = 64 * 2**20  # what a process may use beyond what it has when it begins to decode


@pytest.mark.parametrize("kind", record_kinds(), ids=lambda kind: kind.__name__)
def test_a_mutated_encoding_is_refused_or_is_the_encoding_of_what_comes_out(kind):
    tally = try_decoding(kind, NUM_MUTATIONS, seed=0)
    assert tally.tried == NUM_MUTATIONS
    fields = kind.__struct_fields__
    assert not fields or tally.decoded - tally.unchanged > NUM_MUTATIONS // 50  # some get through: the rules judge them
    assert tally.decoded < NUM_MUTATIONS // 2


@pytest.mark.parametrize("kind", judged_kinds(), ids=lambda kind: kind.__name__)
def test_nothing_that_was_changed_is_ever_accepted(kind):
    tally = try_judging(kind, NUM_MUTATIONS, seed=0)
    assert tally.decoded - tally.unchanged > NUM_MUTATIONS // 50


@pytest.mark.parametrize("name", SCHEDULERS)
def test_whatever_members_report_a_scheduler_decides_and_breaks_no_rule(name):
    for prospect, params in draw_prospects(name, 100):
        cache = VerificationCache(max_entries=0)
        schedule = plan_round(params, prospect, cache).schedule
        validate_schedule(params, prospect, schedule, cache)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_nobody_can_stop_the_others_by_what_it_reports(name):
    params = params_of(name)
    for gain_atto in EXTREMES:
        for budget_pj in BUDGETS:
            conditions = dict.fromkeys(range(5), CONDITIONS) | {5: Conditions(gain_atto, budget_pj, True)}
            candidates = find_candidates(conditions, (0,) * 6, 2, 1)
            prospect = Prospect(params.chain, 2, (NANO,) * 6, candidates, None)
            plan = plan_round(params, prospect, VerificationCache(max_entries=0))
            assert plan.schedule.is_feasible, plan.schedule.reason
            modelled = assess(params, prospect, plan.schedule, VerificationCache(max_entries=0)).modelled
            assert modelled.exchange_ns <= params.genesis.law.max_exchange_ns


def params_of(scheduler):
    initial = encode_weights(example_weights(0), SMALL)
    return read_params(
        example_genesis(initial, samples=[100, 200, 0, 400, 500, 600], scheduler=scheduler), VerificationCache()
    )


def draw_prospects(scheduler, count):
    """Rounds of six members whose reports are anything that a report can be."""
    random = Random(scheduler)
    params = params_of(scheduler)
    for _ in range(count):
        conditions = {
            client: Conditions(random.choice(EXTREMES), random.choice(BUDGETS), random.random() < 0.9)
            for client in range(6)
            if random.random() < 0.9
        }
        queues = tuple(random.choice((0, NANO // 2, 10**12, 10**15)) for _ in range(6))
        yield Prospect(params.chain, 2, queues, find_candidates(conditions, (0,) * 6, 2, 1), None), params


def _decode_within_limit(names, results):
    kinds = {kind.__name__: kind for kind in record_kinds()}
    for name in names:
        decode(encode_example(kinds[name]), kinds[name], MAX_SIZE)  # everything imported and built
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + SPARE_MEMORY, resource.RLIM_INFINITY))
    for name in names:
        mutator = make_mutator(kinds[name], seed=1)
        refused = 0
        for _ in range(300):
            place = refused % 8
            for change in (mutator.claim_much, mutator.nest_deeply, mutator.repeat_often):
                try:
                    decode(change(place), kinds[name], MAX_SIZE)
                except BadEncoding:
                    refused += 1
        results.put((name, refused))


def encode_example(kind):
    return make_mutator(kind, seed=1).mutate()[0]


def test_claims_of_four_billion_elements_cost_no_memory():
    names = [kind.__name__ for kind in (Genesis, Block, Message, MerkleProof)]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    child = context.Process(target=_decode_within_limit, args=(names, results))
    child.start()
    child.join(timeout=240)
    assert child.exitcode == 0
    refused = dict(results.get() for _ in names)
    assert list(refused) == names
    assert min(refused.values()) > 500


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (MerkleProof, b"\x93\x00\x01\xdd\xff\xff\xff\xff" + (b"\xc4\x20" + bytes(32)) * 1000),
        (Modelled, b"\x94\x00\x00\x00\xdd\x00\x98\x96\x80" + bytes(10_000_000)),
        (SignedVote, b"\x92\xc6\xff\xff\xff\xff" + bytes(100_000)),
        (Gossip, b"\x98\xa7hearsay\x01\xdd\xff\xff\xff\xff" + bytes(100_000)),
        (Genesis, b"\x91" * 100_000),
        (Genesis, b"\x99\x01" + b"\x81\xa1k" * 100_000),
    ],
    ids=["array32", "long-array", "bin32", "records", "nested-arrays", "nested-maps"],
)
def test_decoding_never_holds_more_than_a_few_times_its_input(kind, data):
    with pytest.raises(BadEncoding):
        decode(b"\xc0", kind, 1)  # the decoder is built before memory is counted
    tracemalloc.start()
    try:
        with pytest.raises(BadEncoding):
            decode(data, kind, len(data))
        assert tracemalloc.get_traced_memory()[1] < 16 * len(data) + 2**16
    finally:
        tracemalloc.stop()


def test_a_message_above_the_size_limit_is_not_even_looked_at():
    with pytest.raises(BadEncoding, match=r"bytes given, at most \d+ expected"):
        decode(bytes(1001), Genesis, 1000)
    with pytest.raises(BadEncoding, match="at most"):
        decode_message(bytes(70_000_000))
