"""A stored chain is verified by the law alone: whatever its members agreed to, a lie is found where it stands."""

import sqlite3
from copy import deepcopy

import numpy as np
import pytest

from bdfl.encoding import digest, encode
from bdfl.identity import Meaning
from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import Body, Kind, SignedUpdate, TwoVotes, body_root
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import prospect_after, settle_round
from bdfl.ledger.schedule import assess
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import KnownHeight, MemoryStore, rested_on
from bdfl.ledger.verify import Agreement, ModelCheck, verify_chain
from bdfl.report.chain_tables import describe_verification
from bdfl.scenario.schema_learning import QuorumRule, WorkKind
from benchmarks.ledger.valid_chain import (
    SMALL,
    ChainMaker,
    example_genesis,
    example_weights,
)
from benchmarks.ledger.verify_speed import make_chain as make_chain_of, measure_chain
from tests.ledger.lying import INITIAL, SIGNERS, commit_lie, new_maker, replaced, store_unasked
from tests.vectors import independent_verifier
from tests.vectors.make_vectors import describe_chain, make_chain


def test_a_chain_that_keeps_every_rule_is_valid():
    maker = new_maker()
    maker.grow(5)
    heard = []
    found = verify_chain(maker.store, on_block=heard.append)
    assert found.is_valid
    assert found.failure is None
    assert tuple(heard) == found.blocks
    assert [block.height for block in found.blocks] == [1, 2, 3, 4, 5]
    assert found.count_models(ModelCheck.RECOMPUTED) == found.count_schedules(Agreement.SAME) == 5
    assert found.num_signatures == 5 * (1 + 4 + 4 + 4)  # block, updates, reports, votes
    assert found.num_bytes == 5 * 4 * len(INITIAL)


def test_a_chain_without_blocks_is_valid():
    found = verify_chain(new_maker().store)
    assert found.is_valid
    assert found.blocks == ()


def test_the_chain_of_the_golden_vectors_is_valid_and_its_schedules_are_not_the_schedulers():
    found = verify_chain(make_chain().store)
    assert found.is_valid
    assert [block.height for block in found.blocks if block.model is ModelCheck.UNCHANGED] == [4, 5]
    assert found.count_models(ModelCheck.RECOMPUTED) == 6
    agreements = [block.agreement for block in found.blocks]
    assert agreements == [Agreement.DIFFERENT] * 8


def test_a_schedule_that_voters_would_tolerate_is_told_from_the_same_one():
    def a_hertz_less(body: Body) -> Body:
        planned = body.next_schedule
        mining_hz = (planned.mining_hz[0] - 1, *planned.mining_hz[1:])
        changed = replaced(planned, mining_hz=mining_hz)
        return replaced(body, next_schedule=with_objective(maker, changed, body))

    maker = new_maker()
    maker.grow(1)
    commit_lie(maker, a_hertz_less)
    found = verify_chain(maker.store)
    assert found.is_valid
    assert [block.agreement for block in found.blocks] == [Agreement.SAME, Agreement.WITHIN_TOLERANCE]


def with_objective(maker, schedule, body):
    """The schedule with the objective that it really has."""
    settled = settle_round(maker.state, body.updates, body.reports, body.entries)
    assessment = assess(maker.state.params, prospect_after(maker.state, settled), schedule, maker.cache)
    return replaced(schedule, objective_nano=assessment.objective_nano)


def test_the_certificate_of_the_tip_is_verified_too():
    maker = new_maker(law=replaced(example_genesis(INITIAL).law, quorum=QuorumRule.BFT))
    maker.grow(3)
    kept = maker.store._certificates[-1]
    other = maker.store.certificate(2)
    for votes, rule in (
        (kept[:2], "certificate-quorum"),
        (other, "certificate-block"),
        (kept[::-1], "certificate-order"),
        ((replaced(kept[0], vote=replaced(kept[0].vote, kind=Kind.PREVOTE)), *kept[1:]), "certificate-kind"),
        ((replaced(kept[0], vote=replaced(kept[0].vote, mining_ms=7)), *kept[1:]), "vote-signature"),
    ):
        maker.store._certificates[-1] = votes
        found = verify_chain(maker.store)
        assert (found.failure.block, found.failure.rule) == (3, rule)


def test_an_update_replayed_from_an_earlier_round_is_found():
    maker = new_maker()
    maker.grow(2)
    old = maker.store.block(2).body.updates
    store_unasked(maker, maker.make_block(old, [maker.sign_report(client) for client in range(4)]))
    assert verify_chain(maker.store).failure.rule == "update-signature"


def test_one_bit_of_a_stored_update_or_model_is_found():
    for use in ("update", "model"):
        maker = new_maker()
        maker.grow(3)
        body = maker.store.block(2).body
        name = body.model if use == "model" else body.updates[3].update.model
        data = bytearray(maker.store._blobs[name])
        data[-1] ^= 1
        maker.store._blobs[name] = bytes(data)
        failure = verify_chain(maker.store).failure
        assert (failure.block, failure.rule) == (2, "model-stored" if use == "model" else "blob-digest")
        del maker.store._blobs[name]
        failure = verify_chain(maker.store).failure
        assert (failure.block, failure.rule) == (2, "blob-stored")


def test_a_model_with_a_number_that_is_not_finite_is_found():
    maker = new_maker()
    weights = example_weights(3)
    data = bytearray(encode_weights(weights, SMALL))
    data[-4:] = np.float32(np.nan).tobytes()
    name = digest(bytes(data))
    maker.store.put_blob(name, bytes(data))
    updates = [maker.sign_update(client, weights) for client in range(4)]
    model = replaced(updates[0].update, model=name)
    lie = SignedUpdate(model, SIGNERS[0].sign(Meaning.UPDATE, maker.state.place, model))
    block = maker.make_block(updates, [maker.sign_report(client) for client in range(4)])
    body = replaced(block.body, updates=(lie, *updates[1:]))
    store_unasked(maker, maker.seal(replaced(block.header, body=body_root(body)), body))
    failure = verify_chain(maker.store).failure
    assert (failure.block, failure.rule) == (1, "blob-model")


def test_a_genesis_that_no_chain_can_begin_with_is_block_0():
    genesis = example_genesis(INITIAL)
    wrong = replaced(genesis, schedule=replaced(genesis.schedule, objective_nano=0))
    failure = verify_chain(MemoryStore(wrong, INITIAL)).failure
    assert (failure.block, failure.rule) == (0, "first-schedule-objective")
    assert str(failure).startswith("genesis, rule first-schedule-objective: ")


def test_an_untrained_model_that_is_another_one_is_block_0():
    store = MemoryStore(example_genesis(INITIAL), encode_weights(example_weights(9), SMALL))
    failure = verify_chain(store).failure
    assert (failure.block, failure.rule) == (0, "initial-model")


def test_evidence_is_verified_and_counted():
    maker = new_maker()
    maker.grow(1)
    votes = [maker.sign_vote(2, digest(text), kind=Kind.PREVOTE) for text in (b"one", b"another")]
    updates = [maker.sign_update(client, example_weights(client)) for client in maker.state.schedule.selected]
    reports = [maker.sign_report(client) for client in range(4)]
    entry = TwoVotes(maker.state.place, *votes)
    maker.commit(maker.make_block(updates, reports, entries=[entry]))
    found = verify_chain(maker.store)
    assert found.is_valid
    assert found.blocks[1].num_signatures == 1 + 4 + 4 + 4 + 2
    other = replaced(entry, second=entry.first)
    del maker.store._blocks[1:], maker.store._certificates[1:]
    maker.state = maker.state.__class__(**vars_of(maker, 1))
    store_unasked(maker, maker.make_block(updates, reports, entries=[other]))
    assert verify_chain(maker.store).failure.rule == "evidence-blocks"


def vars_of(maker, height):
    """The state after a height, worked out again."""
    from bdfl.ledger.chain import apply_block, start_chain

    state = start_chain(maker.store.genesis, maker.cache)
    for block in list(maker.store.blocks())[:height]:
        state = apply_block(state, block, maker.cache)
    maker.certificate = maker.store.certificate(height)
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


def test_a_pruned_chain_is_valid_and_says_what_was_not_computed_again(tmp_path):
    genesis = example_genesis(INITIAL)
    for store in (MemoryStore(genesis, INITIAL), ChainStore.create(tmp_path / "chain", genesis, INITIAL)):
        maker = ChainMaker(store, SIGNERS)
        maker.grow(6)
        store.prune(2)
        found = verify_chain(store)
        assert found.is_valid
        assert found.checkpoint == 4
        assert [block.model for block in found.blocks] == [*[ModelCheck.PRUNED] * 4, *[ModelCheck.RECOMPUTED] * 2]
    with ChainStore.open(tmp_path / "chain", read_only=True) as store:
        assert verify_chain(store).is_valid


class PrunedMeanwhile:
    """A store that another process prunes to its last two blocks, step by step, from a given access on."""

    def __init__(self, store, num_accesses):
        self._store, self._left = store, num_accesses

    def __getattr__(self, name):
        if name in ("checkpoint", "read_unchecked", "get_blob", "proof"):
            self._left -= 1
            if self._left < 0:
                self._store.prune(max(2, self._store.height + self._left))
        return getattr(self._store, name)


@pytest.mark.slow
def test_a_chain_stays_valid_whenever_its_node_prunes_while_it_is_verified():
    maker = new_maker()
    maker.grow(5)
    num_accesses, is_pruned = 0, True
    while is_pruned:
        store = deepcopy(maker.store)
        found = verify_chain(PrunedMeanwhile(store, num_accesses))
        assert found.failure is None, num_accesses
        checks = [block.model for block in found.blocks]
        assert checks[found.checkpoint :] == [ModelCheck.RECOMPUTED] * (5 - found.checkpoint)
        is_pruned = store.checkpoint > 0
        num_accesses += 1
    assert num_accesses > 30


def test_what_a_node_took_on_trust_is_said_and_everything_else_of_it_verified(tmp_path):
    genesis = example_genesis(INITIAL)
    maker = ChainMaker(MemoryStore(genesis, INITIAL), SIGNERS)
    maker.grow(6)
    whole = maker.store
    for store in (MemoryStore(genesis, INITIAL), ChainStore.create(tmp_path / "chain", genesis, INITIAL)):
        for height in range(1, 5):
            store.append(whole.block(height), whole.certificate(height), is_trusted=True)
        on_the_way = verify_chain(store)
        assert on_the_way.is_valid
        assert on_the_way.trusted == [1, 2, 3, 4]
        store.put_blob(whole.block(4).body.model, whole.get_blob(whole.block(4).body.model))
        for height in (5, 6):
            for use in rested_on(whole.block(height)):
                store.put_blob(use.blob, whole.get_blob(use.blob))
            store.append(whole.block(height), whole.certificate(height))
        found = verify_chain(store)
        assert found.is_valid
        assert found.checkpoint == 4
        assert [block.model for block in found.blocks] == [*[ModelCheck.TRUSTED] * 4, *[ModelCheck.RECOMPUTED] * 2]
        assert any(
            "4 models TAKEN ON TRUST" in line and line.endswith("blocks 1-4")
            for line in describe_verification(found, 0.0)
        )
    wrong = MemoryStore(genesis, INITIAL)
    wrong.append(whole.block(1), whole.certificate(2), is_trusted=True)
    assert verify_chain(wrong).failure.rule == "certificate-block"


def test_a_proof_that_leads_elsewhere_is_found(tmp_path):
    with ChainStore.create(tmp_path / "chain", example_genesis(INITIAL), INITIAL) as store:
        ChainMaker(store, SIGNERS).grow(6)
        store.prune(2)
        proof = store.proof(2, 1)
    with sqlite3.connect(tmp_path / "chain" / "chain.sqlite") as database:
        changed = encode(replaced(proof, index=0))
        database.execute("UPDATE proofs SET data = ? WHERE height = 3 AND client = 1", (changed,))
    database.close()
    with ChainStore.open(tmp_path / "chain", read_only=True) as store:
        failure = verify_chain(store).failure
        assert (failure.block, failure.rule) == (3, "merkle-proof")


def test_a_lost_or_changed_model_of_the_checkpoint_is_found_at_its_block(tmp_path):
    with ChainStore.create(tmp_path / "chain", example_genesis(INITIAL), INITIAL) as store:
        ChainMaker(store, SIGNERS).grow(6)
        store.prune(2)
        height = store.checkpoint
        name = store.block(height).body.model.hex()
    blob = tmp_path / "chain" / "blobs" / name[:2] / name
    kept = blob.read_bytes()
    for damage in (lambda: blob.write_bytes(kept[:-1] + b"\x00"), blob.unlink):
        damage()
        with ChainStore.open(tmp_path / "chain", read_only=True) as store:
            failure = verify_chain(store).failure
            assert (failure.block, failure.rule) == (height, "store")


def test_damage_of_a_stored_row_or_file_is_found_at_its_block(tmp_path):
    path = tmp_path / "chain"
    with ChainStore.create(path, example_genesis(INITIAL), INITIAL) as store:
        ChainMaker(store, SIGNERS).grow(4)
        name = store.block(3).body.updates[0].update.model.hex()
    blob = path / "blobs" / name[:2] / name
    kept = blob.read_bytes()
    blob.write_bytes(kept[:-1] + b"\x00")
    with ChainStore.open(path, read_only=True) as store:
        failure = verify_chain(store).failure
        assert (failure.block, failure.rule) == (3, "blob-digest")
    blob.unlink()
    with ChainStore.open(path, read_only=True) as store:
        failure = verify_chain(store).failure
        assert (failure.block, failure.rule) == (3, "store")
    blob.write_bytes(kept)
    with sqlite3.connect(path / "chain.sqlite") as database:
        database.execute("UPDATE blocks SET data = zeroblob(10) WHERE height = 2")
    database.close()
    with ChainStore.open(path, read_only=True) as store:
        found = verify_chain(store)
        assert (found.failure.block, found.failure.rule) == (2, "store")
        assert len(found.blocks) == 1


def test_somebodys_own_rule_runs_only_where_it_is_allowed(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text("def first(updates, samples):\n    return updates[0]\n")
    monkeypatch.chdir(tmp_path)
    genesis = example_genesis(INITIAL)
    own = replaced(genesis, law=replaced(genesis.law, aggregation="my_rules:first"))
    maker = ChainMaker(
        MemoryStore(own, INITIAL), SIGNERS, cache=VerificationCache(own_functions=frozenset({"my_rules:first"}))
    )
    maker.grow(1)
    assert verify_chain(maker.store).failure.rule == "aggregation"
    assert verify_chain(maker.store, own_functions=frozenset({"my_rules:first"})).is_valid


@pytest.mark.parametrize("kind", WorkKind)
def test_both_kinds_of_work_are_verified(kind):
    maker = new_maker(law=replaced(example_genesis(INITIAL).law, work=kind, difficulty=4))
    maker.grow(2)
    assert verify_chain(maker.store).is_valid
    assert independent_verifier.verify(describe_chain(maker)).height == 2


@pytest.mark.parametrize(
    ("rule", "faulty"), [("median", 1), ("trimmed-mean", 1), ("krum", 0), ("multi-krum", 0), ("minimum-diameter", 1)]
)
def test_chains_of_every_rule_are_verified_by_both_verifiers(rule, faulty):
    law = replaced(example_genesis(INITIAL).law, aggregation=rule, faulty=faulty, min_updates=3)
    maker = new_maker(law=law)
    maker.grow(3)
    assert verify_chain(maker.store).is_valid
    assert independent_verifier.verify(describe_chain(maker)).model == maker.state.model


def test_the_benchmark_measures_a_valid_chain_beside_its_files(tmp_path):
    make_chain_of(tmp_path / "chain", num_blocks=2, num_parameters=100, seed=0)
    lines: list[str] = []
    rows = measure_chain(tmp_path / "chain", num_blocks=2, repeats=1, report=lines.append)
    assert [row.what for row in rows] == ["read and hash, one thread", "read and hash, two threads", "verify"]
    assert rows[0].speed == 1.0
    assert all(row.best_s > 0 and row.files == 2 * 9 for row in rows)


def test_a_chain_that_is_shorter_than_a_file_says_was_cut_short_after_its_last_block():
    maker = new_maker()
    maker.grow(2)
    for height in (0, 1, 2):
        assert verify_chain(maker.store, known=KnownHeight(height, "status.json")).is_valid
    found = verify_chain(maker.store, known=KnownHeight(3, "status.json"))
    assert (found.failure.block, found.failure.rule) == (3, "height")
    assert (found.failure.expected, found.failure.found) == ("3 blocks, as status.json says", "2 blocks")
    assert len(found.blocks) == 2


def test_a_store_without_its_untrained_model_or_that_of_its_checkpoint_is_not_valid():
    maker = new_maker()
    maker.grow(4)
    maker.store.prune(2)
    assert verify_chain(maker.store).is_valid
    for blob, height in ((maker.store.block(2).body.model, 2), (maker.store.genesis.model.initial, 0)):
        kept = maker.store._blobs.pop(blob)
        failure = verify_chain(maker.store).failure
        assert (failure.block, failure.rule, failure.found) == (height, "blob-stored", "none")
        assert failure.expected == f"the bytes of blob {blob.hex()[:16]}"
        maker.store._blobs[blob] = kept
