"""Verifiers that share no code never disagree: on vectors, on chains of several kinds, and on any changed bit."""

import subprocess
from functools import partial

import pytest

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import Admission, FalseWork, Kind, Law, TwoBlocks, TwoUpdates, TwoVotes
from bdfl.ledger.chain import apply_block
from bdfl.ledger.rules import validate_model
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import rested_on
from bdfl.scenario.schema_learning import QuorumRule, WorkKind
from benchmarks.ledger.valid_chain import example_weights
from campaigns.verifiers.chains import CHAINS, LOGGED, write_chain
from campaigns.verifiers.flips import (
    VERIFIER,
    NodeVerifier,
    Verdict,
    judge_by_bdfl,
    judge_by_python,
    try_flips,
)
from tests.ledger.broken_blocks import BREAKAGES, GOOD, SMALL, STATE
from tests.ledger.changing_chain import admission, newcomer, removal, signed, two_votes
from tests.ledger.lying import (
    FIELD_LIES,
    INITIAL,
    SIGNERS,
    commit_lie,
    new_admission,
    new_maker,
    replaced,
    store_unasked,
    write_field_lie,
)
from tests.ledger.test_genesis import REFUSED
from tests.ledger.test_verify_lies import LIES
from tests.vectors.make_vectors import ADAM, MOMENTUM
from tests.verifiers.nodejs import require_node

NUM_FLIPS = 20
SAMPLE = ("golden", "golden-momentum", "krum-adam", "argon2id", "multi-krum")


@pytest.fixture(scope="module")
def node():
    with NodeVerifier(require_node()) as verifier:
        yield verifier


@pytest.mark.parametrize("name", SAMPLE)
def test_no_verdict_differs_on_a_chain_or_on_any_changed_bit(node, tmp_path, name):
    chain = CHAINS[name](tmp_path / "made")
    for is_logged in (False, True) if name == "golden" else (False,):
        copy = tmp_path / f"copy-{is_logged}"
        tally = try_flips(name, chain, copy, node, NUM_FLIPS, 1, is_logged=is_logged)
        assert tally.differences == []
        assert tally.num_flips == NUM_FLIPS


def test_all_kinds_of_chains_are_tried_by_the_campaign():
    assert len(CHAINS) >= 20
    assert set(CHAINS) >= {*SAMPLE, *LOGGED}


def agree(node, folder) -> Verdict:
    """The verdict of all three."""
    found = {judge(folder) for judge in (judge_by_bdfl, judge_by_python, node.judge)}
    assert len(found) == 1, found
    return found.pop()


def test_a_chain_with_changing_members_is_valid_for_all(node, tmp_path):
    assert agree(node, CHAINS["members"](tmp_path / "chain")) == Verdict(None)


@pytest.mark.parametrize("field", FIELD_LIES)
def test_all_find_a_field_that_everybody_voted_for_and_is_wrong(node, tmp_path, field):
    write_field_lie(tmp_path / "chain", FIELD_LIES[field])
    assert agree(node, tmp_path / "chain") == Verdict(3)


@pytest.mark.parametrize("name", LIES)
def test_all_find_a_lie_that_everybody_voted_for(node, tmp_path, name):
    maker = new_maker()
    maker.grow(2)
    commit_lie(maker, LIES[name].change)
    rows = [(maker.store.block(height), maker.store.certificate(height)) for height in range(1, 4)]
    wanted = [use.blob for block, _ in rows for use in rested_on(block)]
    blobs = [data for blob in wanted if (data := maker.store.get_blob(blob)) is not None]
    assert agree(node, write_rows(tmp_path / "chain", maker.store.genesis, INITIAL, rows, blobs)) == Verdict(3)


def write_rows(path, genesis, initial, rows, blobs):
    """A chain folder with any blocks, whatever is wrong with them."""
    with ChainStore.create(path, genesis, initial, durable=False) as store:
        for data in blobs:
            store.put_blob(digest(data), data)
        for height, (block, certificate) in enumerate(rows, start=1):
            store.insert_block(height, block, certificate, {}, is_trusted=False)
    return path


@pytest.fixture(scope="module")
def small_rows():
    """Two blocks of a small with their certificates, and all its models."""
    state, certificate = SMALL.start(), ()
    rows, blobs = [], []
    while state.height < STATE.height:
        block = SMALL.block(state, SMALL.body(state, certificate), proposer=state.height % SMALL.num_members)
        certificate = SMALL.certificate(state, block.digest)
        rows.append((block, certificate))
        blobs += [*SMALL.blobs(state).values(), validate_model(state, block, SMALL.blobs(state), SMALL.cache)]
        state = apply_block(state, block, SMALL.cache)
    assert state.tip == STATE.tip
    return rows, [*blobs, *SMALL.blobs(STATE).values(), validate_model(STATE, GOOD, SMALL.blobs(STATE), SMALL.cache)]


@pytest.mark.parametrize("name", [None, *BREAKAGES])
def test_all_refuse_a_block_that_is_right_but_for_one_thing(node, tmp_path, small_rows, name):
    rows, blobs = small_rows
    block = GOOD if name is None else BREAKAGES[name][0]()
    row = (block, SMALL.certificate(STATE, block.digest))
    folder = write_rows(tmp_path / "chain", SMALL.genesis, SMALL.initial_model, [*rows, row], blobs)
    assert agree(node, folder) == Verdict(None if name is None else 3)


@pytest.mark.parametrize("name", [name for name, (_, rule) in REFUSED.items() if rule != "scheduler"])
def test_all_refuse_a_genesis_that_means_nothing(node, tmp_path, name):
    folder = write_rows(tmp_path / "chain", REFUSED[name][0], SMALL.initial_model, [], [])
    assert agree(node, folder) == Verdict(0)


def test_all_refuse_an_admission_with_a_key_of_small_order(node, tmp_path):
    folder = write_chain(tmp_path / "chain", new_admission(b"\x01" + bytes(31)))
    assert agree(node, folder) == Verdict(1)


@pytest.mark.parametrize("name", ["multi-krum", "krum-adam"])
def test_a_pruned_chain_is_valid_for_all_and_a_lost_proof_is_found(node, tmp_path, name):
    folder = CHAINS[name](tmp_path / "chain")
    with ChainStore.open(folder) as store:
        store.prune(1)
    assert agree(node, folder) == Verdict(None)
    with ChainStore.open(folder) as store:
        store._database.run("DELETE FROM proofs WHERE height = 2 AND client = 1")
    assert agree(node, folder) == Verdict(2)


def test_a_folder_without_a_chain_is_refused_in_one_line(tmp_path):
    done = subprocess.run(
        [require_node(), VERIFIER, tmp_path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert done.stdout == f"{tmp_path}: wrong: genesis, rule store: no chain.sqlite\n"


def test_its_own_tests_pass():
    tests = VERIFIER.with_name("verify.test.mjs")
    done = subprocess.run([require_node(), "--test", tests], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_uses_nothing_but_modules_of_node_itself():
    for path in VERIFIER.parent.glob("*.mjs"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(("import ", "} from ")):
                assert '"node:' in line or '"./' in line, line


def with_vote(found, **changes):
    """The evidence with its second vote saying something else, signed by member 3 in the evidence's place."""
    vote = replaced(found.second.vote, **changes)
    signature = SIGNERS[3].sign(Meaning.VOTE, found.place, vote)
    return replaced(found, second=replaced(found.second, vote=vote, signature=signature))


def two_updates(maker, *values):
    first, second = (maker.sign_update(3, example_weights(value)) for value in values)
    return TwoUpdates(maker.state.place, first, second)


def two_blocks(maker, *attempts):
    reports = [maker.sign_report(client) for client in range(4)]
    first, second = (maker.make_block([], reports, proposer=3, attempt=one).signed_header for one in attempts)
    return TwoBlocks(first, second)


def elsewhere(maker):
    found = two_votes(maker, 3)
    place = replaced(found.place, chain=digest(b"another chain"))
    votes = [
        replaced(one, signature=SIGNERS[3].sign(Meaning.VOTE, place, one.vote)) for one in (found.first, found.second)
    ]
    return TwoVotes(place, *votes)


ENTRIES = {
    "a change that has expired": lambda maker: admission(maker, expires=2),
    "a change that too few agreed to": lambda maker: admission(maker, by=(0, 1)),
    "a change with other assents": lambda maker: replaced(admission(maker), expires=9),
    "a change with assents in another order": lambda maker: replaced(
        admission(maker), assents=admission(maker).assents[::-1]
    ),
    "an admission under another number": lambda maker: admission(maker, 5),
    "an admission with a known key": lambda maker: signed(maker, Admission(4, newcomer(4, key=0))),
    "an admission with too many samples": lambda maker: signed(maker, Admission(4, newcomer(4, samples=2**29))),
    "an admission with a rate above one": lambda maker: signed(maker, Admission(4, newcomer(4, rate_nano=10**9 + 1))),
    "a removal of nobody": lambda maker: removal(maker, 4),
    "two votes for one block": lambda maker: with_vote(two_votes(maker, 3), block=two_votes(maker, 3).first.vote.block),
    "two votes of two attempts": lambda maker: with_vote(two_votes(maker, 3), attempt=2),
    "two votes of two kinds": lambda maker: with_vote(two_votes(maker, 3), kind=Kind.PRECOMMIT),
    "two votes of another chain": elsewhere,
    "two votes, one forged": lambda maker: replaced(
        two_votes(maker, 3), second=replaced(two_votes(maker, 3).second, signature=bytes(64))
    ),
    "an update twice": lambda maker: two_updates(maker, 1, 1),
    "a block twice": lambda maker: two_blocks(maker, 1, 1),
    "blocks of two attempts": lambda maker: two_blocks(maker, 1, 2),
    "work that is not false": lambda maker: FalseWork(two_blocks(maker, 1, 1).first),
}


@pytest.mark.parametrize("name", [None, *ENTRIES])
def test_all_refuse_entries_that_prove_nothing_or_change_what_cannot_be(node, tmp_path, name):
    maker = new_maker()
    maker.grow(2)
    make = (lambda maker: two_updates(maker, 1, 2)) if name is None else ENTRIES[name]
    entries = [make(maker)]
    updates = [maker.sign_update(client, example_weights(client)) for client in maker.state.schedule.selected]
    block = maker.make_block(updates, [maker.sign_report(client) for client in range(4)], entries=entries)
    store_unasked(maker, block)
    rows = [(maker.store.block(height), maker.store.certificate(height)) for height in range(1, 4)]
    wanted = [use.blob for found, _ in rows for use in rested_on(found)]
    blobs = [maker.store.get_blob(blob) for blob in wanted]
    folder = write_rows(tmp_path / "chain", maker.store.genesis, INITIAL, rows, [one for one in blobs if one])
    assert agree(node, folder) == Verdict(None if name is None else 3)


def _with_moments_of_another_round(maker, model):
    size = maker.store.genesis.model.size
    return model[:size] + maker.store.get_blob(maker.state.model)[size:]


SERVER_LIES = {
    "moments that did not move": _with_moments_of_another_round,
    "one bit of the last moment": lambda maker, model: model[:-1] + bytes([model[-1] ^ 1]),
    "weights without moments": lambda maker, model: model[: maker.store.genesis.model.size],
    "a moment too many": lambda maker, model: model + model[-maker.store.genesis.model.size :],
    "the model before": lambda maker, model: maker.store.get_blob(maker.state.model),
}


@pytest.mark.parametrize("text", [MOMENTUM, f"median {ADAM}"])
@pytest.mark.parametrize("lie", SERVER_LIES)
def test_all_find_a_lie_about_the_servers_optimizer_that_everybody_voted_for(node, tmp_path, text, lie):
    maker = new_maker(law=Law(QuorumRule.BFT, WorkKind.SHA256, 4, 0, text, 0, 1, 3600 * 10**9))
    maker.grow(2)
    updates = [maker.sign_update(client, example_weights(50 + client)) for client in maker.state.schedule.selected]
    reports = [maker.sign_report(client) for client in range(4)]
    honest = maker.make_block(updates, reports, proposer=1)
    said = SERVER_LIES[lie](maker, maker.store.get_blob(honest.body.model))
    maker.store.put_blob(digest(said), said)
    for model, verdict in ((honest.body.model, Verdict(None)), (digest(said), Verdict(3))):
        change = partial(replaced, model=model)
        block = maker.make_block(updates, reports, proposer=1, change=change)
        certificate = tuple(maker.sign_vote(voter, block.digest) for voter in range(4))
        rows = [(maker.store.block(height), maker.store.certificate(height)) for height in (1, 2)]
        rows.append((block, certificate))
        wanted = [use.blob for one, _ in rows for use in rested_on(one)]
        blobs = [maker.store.get_blob(blob) for blob in wanted]
        folder = write_rows(tmp_path / f"chain-{verdict.block}", maker.store.genesis, INITIAL, rows, blobs)
        assert agree(node, folder) == verdict
