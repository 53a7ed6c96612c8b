"""The law: honest blocks pass, and a block that breaks one rule is refused by that rule, with what it expected."""

import ast
import dataclasses
import inspect

import pytest
from hypothesis import given, strategies as st

from bdfl.encoding import decode, digest, encode
from bdfl.ledger import rules
from bdfl.ledger.block import MAX_BLOCK_SIZE, Block, body_root
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import ChainState, apply_block
from bdfl.ledger.errors import BadCertificate, BadProposer, BadReport, BadUpdate, BadVote, InvalidBlock
from bdfl.ledger.rules import (
    TIME_TOLERANCE_MS,
    is_timely,
    make_body,
    make_header,
    min_offset_ms,
    validate_model,
    validate_proposal,
)
from bdfl.ledger.statements import validate_certificate, validate_vote
from bdfl.scenario.schema_learning import Ledger, QuorumRule, WorkKind
from tests.ledger.broken_blocks import BREAKAGES, CERTIFICATE, GOOD, SMALL, STATE, reheaded, remade
from tests.ledger.small_federation import found_federation, replace, small_scenario

RULES = [
    call.func.id
    for call in ast.walk(ast.parse(inspect.getsource(validate_proposal)))
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
]


def broken_rules(state: ChainState, block: Block) -> list[str]:
    """Names of all rules of `validate_proposal` that the block breaks."""
    given_values = {"state": state, "block": block, "cache": SMALL.cache}
    broken = []
    for name in RULES:
        rule = getattr(rules, name)
        try:
            rule(**{key: given_values[key] for key in inspect.signature(rule).parameters})
        except InvalidBlock:
            broken.append(name)
    return broken


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_block_that_breaks_one_rule_is_refused_by_that_rule_alone(breakage):
    make, function, error, rule = BREAKAGES[breakage]
    block = make()
    assert broken_rules(STATE, block) == [function]
    with pytest.raises(error) as refusal:
        validate_proposal(STATE, block, SMALL.cache)
    assert type(refusal.value) is error
    assert refusal.value.rule == rule
    assert refusal.value.expected != refusal.value.found
    assert str(refusal.value).startswith(f"{rule}: ")


def test_every_rule_of_validity_has_a_block_that_breaks_it():
    assert {function for _, function, _, _ in BREAKAGES.values()} == set(RULES) - {"validate_proposer"}


def test_a_stranger_cannot_propose():
    header = replace(GOOD.header, proposer=4)
    with pytest.raises(BadProposer) as refusal:
        validate_proposal(STATE, SMALL.seal(header, GOOD.body, 1), SMALL.cache)
    assert refusal.value.rule == "proposer"


@pytest.mark.parametrize("number", [4, 4095])
def test_statements_of_strangers_do_not_count(number):
    update = replace(GOOD.body.updates[0].update, client=number)
    report = replace(GOOD.body.reports[0].report, client=number)
    with pytest.raises(BadUpdate, match="update-member"):
        validate_proposal(STATE, remade(updates=(SMALL.sign_update(STATE, update, 1),)), SMALL.cache)
    with pytest.raises(BadReport, match="report-member"):
        validate_proposal(STATE, remade(reports=(SMALL.sign_report(STATE, report, 1),)), SMALL.cache)
    with pytest.raises(BadVote, match="vote-member"):
        validate_vote(STATE, replace(CERTIFICATE[0], vote=replace(CERTIFICATE[0].vote, voter=number)), SMALL.cache)


@pytest.mark.parametrize("scheduler", ["drc", "exact", "exact-power", "all", "random", "round-robin", "channel-best"])
def test_honest_blocks_are_valid_and_votable(scheduler):
    small = found_federation(small_scenario(5, scheduler))
    state, certificate = small.start(), ()
    for _ in range(4):
        block = small.block(state, small.body(state, certificate), proposer=state.height % 5)
        block = decode(encode(block), Block, MAX_BLOCK_SIZE)
        validate_proposal(state, block, small.cache)
        data = validate_model(state, block, small.blobs(state), small.cache)
        assert digest(data) == block.body.model
        rules.judge_schedule(state, block, small.cache)
        certificate = small.certificate(state, block.digest)
        validate_certificate(state, block.digest, certificate, small.cache)
        state = apply_block(state, block, small.cache)
    assert state.height == 4


@pytest.mark.parametrize("work", list(WorkKind))
@pytest.mark.parametrize("quorum", list(QuorumRule))
def test_chains_of_every_law_grow(work, quorum):
    small = found_federation(small_scenario(4, ledger=Ledger(work=work, quorum=quorum, cycles_per_hash=1e7)))
    state, certificate = small.grow(small.start(), 2)
    block = small.block(state, small.body(state, certificate))
    validate_proposal(state, block, small.cache)
    validate_model(state, block, small.blobs(state), small.cache)


def test_one_attempt_later_half_the_work_is_enough():
    block = SMALL.block(STATE, GOOD.body, attempt=3)
    assert block.header.difficulty == 30 // 4
    validate_proposal(STATE, block, SMALL.cache)


def test_the_first_block_carries_no_certificate():
    state = SMALL.start()
    block = SMALL.block(state, SMALL.body(state))
    validate_proposal(state, block, SMALL.cache)
    with pytest.raises(BadCertificate, match="certificate-genesis"):
        validate_proposal(state, SMALL.remade(block, parent_certificate=CERTIFICATE), SMALL.cache)


def plain_state():
    bare = dict.fromkeys(("params", "tip_params", "coming_params"))
    return dataclasses.asdict(dataclasses.replace(STATE, conditions=dict(STATE.conditions), **bare))


def test_a_refused_block_changes_nothing():
    before = plain_state()
    for make, _, _, _ in BREAKAGES.values():
        with pytest.raises(InvalidBlock):
            validate_proposal(STATE, make(), SMALL.cache)
    assert plain_state() == before


# Making blocks


@given(st.permutations(range(4)), st.permutations(range(4)))
def test_the_order_of_arrival_does_not_matter(first, second):
    updates = sorted(SMALL.updates(STATE), key=lambda signed: first.index(signed.update.client))
    reports = sorted(SMALL.reports(STATE), key=lambda signed: second.index(signed.report.client))
    assert SMALL.body(STATE, CERTIFICATE, updates=updates, reports=reports) == GOOD.body


def test_a_body_comes_with_the_bytes_of_its_model():
    body, data = make_body(
        STATE,
        certificate=CERTIFICATE,
        updates=SMALL.updates(STATE),
        reports=SMALL.reports(STATE),
        entries=(),
        blobs=SMALL.blobs(STATE),
        cache=SMALL.cache,
    )
    assert digest(data) == body.model
    assert len(data) == SMALL.genesis.model.size
    assert make_header(STATE, 1, 1, body, GOOD.header.time_ms) == GOOD.header
    assert GOOD.header.body == body_root(body)


def test_remembering_changes_no_verdict():
    for make, *_ in BREAKAGES.values():
        block = make()
        found = []
        for cache in (VerificationCache(max_entries=0), VerificationCache(max_entries=1), SMALL.cache):
            with pytest.raises(InvalidBlock) as refusal:
                validate_proposal(STATE, block, cache)
            found.append(str(refusal.value))
        assert len(set(found)) == 1
    for cache in (VerificationCache(max_entries=0), VerificationCache(max_entries=1), VerificationCache()):
        validate_proposal(STATE, GOOD, cache)
        assert digest(validate_model(STATE, GOOD, SMALL.blobs(STATE), cache)) == GOOD.body.model


def test_a_header_has_its_proposers_time_and_at_least_one_that_is_valid():
    least_ms = STATE.least_time_ms
    stamps = [make_header(STATE, 1, 1, GOOD.body, now_ms).time_ms for now_ms in (0, least_ms, least_ms + 7)]
    assert stamps == [least_ms, least_ms, least_ms + 7]


@pytest.mark.parametrize(
    ("off_ms", "attempt", "expected"),
    [
        (0, 1, True),
        (TIME_TOLERANCE_MS, 1, True),
        (-TIME_TOLERANCE_MS, 1, True),
        (TIME_TOLERANCE_MS + 1, 1, False),
        (-TIME_TOLERANCE_MS - 1, 1, False),
        (TIME_TOLERANCE_MS + 1, 2, True),
        (4 * TIME_TOLERANCE_MS + 1, 3, False),
        (10**13, 10_000, True),
    ],
)
def test_the_tolerance_for_a_blocks_time_doubles_with_each_attempt(off_ms, attempt, expected):
    later = reheaded(time_ms=GOOD.header.time_ms + 10 * TIME_TOLERANCE_MS)
    clock_ms = later.header.time_ms + off_ms
    assert is_timely(STATE, later, clock_ms, clock_ms, attempt) is expected


def test_a_block_that_was_stamped_at_any_time_since_the_voter_began_is_timely():
    time_ms, hour_ms = GOOD.header.time_ms, 3_600_000
    assert is_timely(STATE, GOOD, time_ms - hour_ms, time_ms + hour_ms, 1)
    assert is_timely(STATE, GOOD, time_ms, time_ms + hour_ms, 1)
    assert not is_timely(STATE, GOOD, time_ms + hour_ms, time_ms + 2 * hour_ms, 1)


def test_the_least_valid_time_is_timely_for_a_voter_whose_clock_is_behind():
    least = reheaded(time_ms=STATE.least_time_ms)
    assert is_timely(STATE, least, 1, 1, 1)
    assert not is_timely(STATE, reheaded(time_ms=least.header.time_ms + TIME_TOLERANCE_MS + 1), 1, 1, 1)


@pytest.mark.parametrize(
    ("since_ms", "now_ms", "offset_ms"), [(90, 110, 0), (103, 110, 3), (80, 95, -5), (120, 95, -5), (130, 104, 4)]
)
def test_a_clock_is_off_by_at_least_what_no_order_of_events_explains(since_ms, now_ms, offset_ms):
    assert min_offset_ms(100, since_ms, now_ms) == offset_ms
