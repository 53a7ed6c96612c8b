"""Whatever its members agreed to, a lie in a chain is found where it stands, by the rule that it breaks."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import Body, Seal, header_seal
from bdfl.ledger.proof_of_work import is_worked
from bdfl.ledger.verify import verify_chain
from bdfl.scenario.schema_learning import WorkKind
from benchmarks.ledger.valid_chain import CONDITIONS, example_weights
from tests.ledger.lying import INITIAL, SIGNERS, commit_lie, new_maker, replaced, store_unasked
from tests.vectors import independent_verifier
from tests.vectors.independent_format import Wrong
from tests.vectors.make_vectors import describe_chain

# Lies that all members agree to: the proposer mines and signs them, everybody votes for them.


@dataclass(frozen=True)
class Lie:
    rule: str
    change: Callable[[Body], Body]


def change_first(items, **changes):
    return (replaced(items[0], **changes), *items[1:])


def shift(numbers, by=1):
    return (numbers[0] + by, *numbers[1:])


LIES = {
    "another model": Lie("model-aggregate", lambda body: replaced(body, model=digest(b"mine"))),
    "the model of before": Lie("model-aggregate", lambda body: replaced(body, model=digest(INITIAL))),
    "an update dropped": Lie("queues", lambda body: replaced(body, updates=body.updates[1:])),
    "an update dropped, queues in order": Lie(
        "next|schedule|model", lambda body: replaced(body, updates=body.updates[1:], queue_nano=(500_000_000, 0, 0, 0))
    ),
    "updates in another order": Lie("update-order", lambda body: replaced(body, updates=body.updates[::-1])),
    "an update twice": Lie("update-order", lambda body: replaced(body, updates=(body.updates[0], *body.updates))),
    "an update of another model": Lie(
        "update-signature",
        lambda body: replaced(
            body, updates=change_first(body.updates, update=replaced(body.updates[0].update, model=digest(b"x")))
        ),
    ),
    "more samples": Lie(
        "update-samples",
        lambda body: replaced(
            body, updates=change_first(body.updates, update=replaced(body.updates[0].update, samples=10**6))
        ),
    ),
    "a forged update": Lie(
        "update-signature", lambda body: replaced(body, updates=change_first(body.updates, signature=bytes(64)))
    ),
    "declared empty": Lie("empty", lambda body: replaced(body, is_empty=True)),
    "a queue longer by 1e-9": Lie("queues", lambda body: replaced(body, queue_nano=shift(body.queue_nano))),
    "a queue too many": Lie("queues", lambda body: replaced(body, queue_nano=(*body.queue_nano, 0))),
    "a round that was a nanosecond faster": Lie(
        "modelled-receipts",
        lambda body: replaced(body, modelled=replaced(body.modelled, delay_ns=body.modelled.delay_ns - 1)),
    ),
    "a picojoule less": Lie(
        "modelled-receipts",
        lambda body: replaced(body, modelled=replaced(body.modelled, energy_pj=shift(body.modelled.energy_pj, -1))),
    ),
    "another schedule played": Lie(
        "played-schedule",
        lambda body: replaced(body, schedule=replaced(body.schedule, cpu_hz=shift(body.schedule.cpu_hz))),
    ),
    "an objective lower by 1e-9": Lie(
        "schedule-objective",
        lambda body: replaced(
            body, next_schedule=replaced(body.next_schedule, objective_nano=body.next_schedule.objective_nano - 1)
        ),
    ),
    "a schedule beyond the budget": Lie(
        "schedule-C3",
        lambda body: replaced(
            body, next_schedule=replaced(body.next_schedule, mining_hz=shift(body.next_schedule.mining_hz, 10**11))
        ),
    ),
    "a schedule of a member that did not report": Lie(
        "schedule-C1", lambda body: replaced(body, reports=body.reports[1:])
    ),
    "a schedule of nobody": Lie(
        "schedule-C2",
        lambda body: replaced(
            body, next_schedule=replaced(body.next_schedule, selected=(), cpu_hz=(), power_uw=())
        ),
    ),
    "a schedule for another round": Lie(
        "schedule-round", lambda body: replaced(body, next_schedule=replaced(body.next_schedule, round=9))
    ),
    "a schedule in another order": Lie(
        "schedule-form",
        lambda body: replaced(
            body, next_schedule=replaced(body.next_schedule, selected=body.next_schedule.selected[::-1])
        ),
    ),
    "reports in another order": Lie("report-order", lambda body: replaced(body, reports=body.reports[::-1])),
    "a better channel": Lie(
        "report-signature",
        lambda body: replaced(
            body,
            reports=change_first(
                body.reports,
                report=replaced(body.reports[0].report, conditions=replaced(CONDITIONS, gain_atto=10**14)),
            ),
        ),
    ),
    "a report of another round": Lie(
        "report-round",
        lambda body: replaced(
            body, reports=change_first(body.reports, report=replaced(body.reports[0].report, round=2))
        ),
    ),
    "too few votes for the parent": Lie(
        "certificate-quorum", lambda body: replaced(body, parent_certificate=body.parent_certificate[:2])
    ),
    "a vote for the parent counted twice": Lie(
        "certificate-order",
        lambda body: replaced(body, parent_certificate=(*body.parent_certificate[:2], body.parent_certificate[1])),
    ),
    "a forged vote for the parent": Lie(
        "vote-signature",
        lambda body: replaced(body, parent_certificate=change_first(body.parent_certificate, signature=bytes(64))),
    ),
    "no certificate of the parent": Lie("certificate-quorum", lambda body: replaced(body, parent_certificate=())),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_a_lie_that_everybody_voted_for_is_found_by_rule_and_block(name):
    lie = LIES[name]
    maker = new_maker()
    maker.grow(2)
    commit_lie(maker, lie.change)
    found = verify_chain(maker.store)
    assert not found.is_valid
    assert found.failure.block == 3
    assert any(found.failure.rule.startswith(rule) for rule in lie.rule.split("|")), found.failure
    assert [block.height for block in found.blocks] == [1, 2]
    with pytest.raises(Wrong):
        independent_verifier.verify(describe_chain(maker))


def resealed(maker, block, **changes):
    """The block with another header, mined and signed again."""
    return maker.seal(replaced(block.header, **changes), block.body)


HEADER_LIES = {
    "format": {"format": 1},
    "chain": {"chain": digest(b"another chain")},
    "height": {"height": 4},
    "parent": {"parent": digest(b"another parent")},
    "body-root": {"body": digest(b"another body")},
    "difficulty": {"difficulty": 15},
}


@pytest.mark.parametrize("rule", HEADER_LIES)
def test_a_header_that_lies_is_found(rule):
    maker = new_maker()
    maker.grow(2)
    updates = [maker.sign_update(client, example_weights(client)) for client in maker.state.schedule.selected]
    block = maker.make_block(updates, [maker.sign_report(client) for client in range(4)])
    store_unasked(maker, resealed(maker, block, **HEADER_LIES[rule]))
    found = verify_chain(maker.store)
    assert (found.failure.block, found.failure.rule) == (3, rule)
    with pytest.raises(Wrong):
        independent_verifier.verify(describe_chain(maker))


def test_false_work_a_false_signature_and_a_strange_proposer_are_found():
    maker = new_maker()
    maker.grow(1)
    updates = [maker.sign_update(client, example_weights(client)) for client in maker.state.schedule.selected]
    block = maker.make_block(updates, [maker.sign_report(client) for client in range(4)])
    seal = header_seal(block.header)
    nonces = (number.to_bytes(8, "big") for number in range(1000))
    false_nonce = next(nonce for nonce in nonces if not is_worked(WorkKind.SHA256, seal, nonce, 16))
    lazy = replaced(block, nonce=false_nonce)
    signature = SIGNERS[0].sign(Meaning.BLOCK, lazy.header.place, Seal(lazy.header, lazy.nonce))
    cases = {
        "work": replaced(lazy, signature=signature),
        "block-signature": replaced(block, signature=bytes(64)),
        "proposer": replaced(block, header=replaced(block.header, proposer=4)),
    }
    for rule, wrong in cases.items():
        del maker.store._blocks[1:], maker.store._certificates[1:]
        store_unasked(maker, wrong)
        found = verify_chain(maker.store)
        assert (found.failure.block, found.failure.rule) == (2, rule)
