"""Laws that hold for a store in files and one in memory alike."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from bdfl.encoding import digest, encode
from bdfl.ledger.block import Block, Kind, body_root
from bdfl.ledger.merkle import proven_root
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.ledger.store import (
    BlobUse,
    MemoryStore,
    MisplacedBlock,
    NotKept,
    QuotaExceeded,
    Store,
    StoredRound,
    rested_on,
)
from benchmarks.ledger.sample_chain import SampleChain, Stage, sample_chain, sample_report, sample_vote

CHAIN = sample_chain(8, num_members=3)
Maker = Callable[..., Store]


@pytest.fixture(params=["files", "memory"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path):
    """A function that makes a new store of `CHAIN`."""
    opened: list[ChainStore] = []

    def make(max_bytes: int | None = None) -> Store:
        if request.param == "memory":
            return MemoryStore(CHAIN.genesis, CHAIN.initial_model, max_bytes=max_bytes)
        opened.append(
            ChainStore.create(
                tmp_path / "chain", CHAIN.genesis, CHAIN.initial_model, durable=False, max_bytes=max_bytes
            )
        )
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(make_store: Maker) -> Store:
    return make_store()


def put_stage(store: Store, stage: Stage) -> None:
    for blob, data in stage.blobs.items():
        store.put_blob(blob, data)
    store.append(stage.block, stage.certificate)


def fill(store: Store, num_blocks: int) -> None:
    for stage in CHAIN.stages[:num_blocks]:
        put_stage(store, stage)


def test_a_new_store_holds_genesis_and_the_untrained_model(store: Store) -> None:
    assert store.genesis == CHAIN.genesis
    assert store.height == store.checkpoint == 0
    assert store.get_blob(CHAIN.genesis.model.initial) == CHAIN.initial_model
    assert list(store.blocks()) == []
    assert store.read_round(1) == StoredRound(1)


def test_what_was_appended_is_read_back(store: Store) -> None:
    fill(store, 3)
    assert store.height == 3
    for stage in CHAIN.stages[:3]:
        height = stage.block.header.height
        assert store.block(height) == stage.block
        assert store.certificate(height) == stage.certificate
        assert all(store.has_blob(blob) and store.get_blob(blob) == data for blob, data in stage.blobs.items())
    assert list(store.blocks(2)) == [stage.block for stage in CHAIN.stages[1:3]]


@pytest.mark.parametrize("height", [-1, 0, 4])
def test_there_is_no_block_beyond_the_ends(store: Store, height: int) -> None:
    fill(store, 3)
    with pytest.raises(IndexError, match=r"of 1\.\.3"):
        store.block(height)
    with pytest.raises(IndexError, match=r"of 1\.\.3"):
        store.certificate(height)


def _changed(block: Block, **changes: object) -> Block:
    return msgspec.structs.replace(block, header=msgspec.structs.replace(block.header, **changes))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (CHAIN.stages[0].block, "block 1, block 3 is the next"),
        (CHAIN.stages[3].block, "block 4, block 3 is the next"),
        (_changed(CHAIN.stages[2].block, parent=bytes(32)), "its parent is 0000"),
        (_changed(CHAIN.stages[2].block, chain=bytes(32)), "block of chain 0000"),
    ],
)
def test_only_the_next_block_is_appended(store: Store, block: Block, reason: str) -> None:
    fill(store, 2)
    with pytest.raises(MisplacedBlock, match=reason):
        store.append(block, ())
    assert store.height == 2


@pytest.mark.parametrize("left_out", rested_on(CHAIN.stages[0].block), ids=lambda use: f"client-{use.client}")
def test_a_block_comes_after_every_blob_it_rests_on(store: Store, left_out: BlobUse) -> None:
    stage = CHAIN.stages[0]
    for blob in stage.blobs.keys() - {left_out.blob}:
        store.put_blob(blob, stage.blobs[blob])
    with pytest.raises(MisplacedBlock, match=f"block 1: .*{left_out.blob.hex()}: not kept"):
        store.append(stage.block, stage.certificate)
    assert store.height == 0


def test_an_empty_block_needs_no_updates(store: Store) -> None:
    first = CHAIN.stages[0].block
    body = msgspec.structs.replace(first.body, is_empty=True, model=CHAIN.genesis.model.initial)
    block = _changed(msgspec.structs.replace(first, body=body), body=body_root(body))
    store.append(block, ())
    assert store.block(1) == block


def test_statements_of_a_height_come_back_in_their_order_and_once(store: Store) -> None:
    block = CHAIN.stages[0].block
    votes = [sample_vote(1, attempt, block.digest, 0, kind) for attempt in (2, 1) for kind in Kind]
    report = sample_report(1, 2)
    update = block.body.updates[1]
    for _ in range(2):
        for vote in votes:
            store.put_statement(1, vote)
        store.put_statement(1, report)
        store.put_statement(1, update)
        store.put_statement(block.header.height, block)
    store.put_progress(1, 3, ())
    store.put_progress(1, 4, tuple(votes[:2]))
    assert store.read_round(1) == StoredRound(1, tuple(votes), (update,), (report,), (block,), 4, tuple(votes[:2]))
    assert store.read_round(2) == StoredRound(2)


def test_a_decided_height_keeps_its_statements_and_forgets_candidates_and_progress(store: Store) -> None:
    stage = CHAIN.stages[0]
    vote = sample_vote(1, 1, stage.block.digest, 0)
    store.put_statement(1, vote)
    store.put_statement(stage.block.header.height, stage.block)
    store.put_progress(1, 2, (vote,))
    store.put_statement(CHAIN.stages[1].block.header.height, CHAIN.stages[1].block)
    put_stage(store, stage)
    assert store.read_round(1) == StoredRound(1, votes=(vote,))
    assert store.read_round(2).candidates == (CHAIN.stages[1].block,)


def test_blobs_beyond_the_quota_are_refused_and_change_nothing(make_store: Maker) -> None:
    size = len(CHAIN.initial_model)
    store = make_store(max_bytes=2 * size)
    (first, data), (second, other) = list(CHAIN.stages[0].blobs.items())[:2]
    store.put_blob(first, data)
    store.put_blob(first, data)
    with pytest.raises(QuotaExceeded, match=f"quota of {2 * size}"):
        store.put_blob(second, other)
    assert not store.has_blob(second)
    assert store.get_blob(second) is None


def test_pruning_makes_room_in_the_quota(make_store: Maker) -> None:
    per_block = sum(len(data) for data in CHAIN.stages[0].blobs.values())
    store = make_store(max_bytes=2 * len(CHAIN.initial_model) + 2 * per_block)
    for stage in CHAIN.stages:
        put_stage(store, stage)
        store.prune(1)
    assert store.height == len(CHAIN.stages)


def test_pruning_keeps_what_the_kept_blocks_and_the_checkpoint_need(store: Store) -> None:
    fill(store, 5)
    report = store.prune(2)
    assert (report.checkpoint, report.num_blocks, store.checkpoint) == (3, 3, 3)
    models = {stage.block.body.model for stage in CHAIN.stages[:3]}
    dropped = {blob for stage in CHAIN.stages[:3] for blob in stage.blobs} - {CHAIN.stages[2].block.body.model}
    assert models - dropped == {CHAIN.stages[2].block.body.model}
    assert report.num_blobs == len(dropped)
    assert report.num_bytes == sum(len(CHAIN.initial_model) for _ in dropped)
    assert not any(store.has_blob(blob) or store.get_blob(blob) for blob in dropped)
    kept = [blob for stage in CHAIN.stages[3:5] for blob in stage.blobs]
    assert all(store.get_blob(blob) for blob in [*kept, CHAIN.stages[2].block.body.model, CHAIN.genesis.model.initial])
    assert list(store.blocks()) == [stage.block for stage in CHAIN.stages[:5]]
    put_stage(store, CHAIN.stages[5])


def test_a_model_that_stays_the_same_outlives_the_block_it_came_from(store: Store) -> None:
    fill(store, 2)
    parent = CHAIN.stages[1].block
    for _ in range(2):
        body = msgspec.structs.replace(parent.body, is_empty=True, updates=())
        header = msgspec.structs.replace(
            parent.header, height=parent.header.height + 1, parent=parent.digest, body=body_root(body)
        )
        parent = msgspec.structs.replace(parent, header=header, body=body)
        store.append(parent, ())
    store.prune(1)
    assert store.get_blob(CHAIN.stages[1].block.body.model) is not None


def test_pruning_again_changes_nothing(store: Store) -> None:
    fill(store, 5)
    store.prune(2)
    again = store.prune(2)
    assert (again.checkpoint, again.num_blocks, again.num_blobs, again.num_bytes) == (3, 0, 0, 0)
    assert store.prune(4).checkpoint == 3


def test_pruning_says_how_many_blocks_it_pruned_since_the_last_time(store: Store) -> None:
    size = len(CHAIN.initial_model)
    fill(store, 4)
    first = store.prune(1)
    assert (first.checkpoint, first.num_blocks) == (3, 3)
    assert first.num_bytes == size * first.num_blobs > 0
    for stage in CHAIN.stages[4:6]:
        put_stage(store, stage)
    second = store.prune(1)
    assert (second.checkpoint, second.num_blocks) == (5, 2)
    assert second.num_bytes == size * second.num_blobs > 0


def test_pruning_keeps_at_least_one_block(store: Store) -> None:
    fill(store, 2)
    with pytest.raises(ValueError, match="at least 1"):
        store.prune(0)


def test_pruning_leaves_the_open_height_alone(store: Store) -> None:
    """A node that starts again needs its own model and all that its candidates rest on."""
    candidate = CHAIN.stages[4]
    fill(store, 4)
    for blob, data in candidate.blobs.items():
        store.put_blob(blob, data)
    own = CHAIN.stages[5].block.body.updates[0]
    store.put_blob(own.update.model, CHAIN.stages[5].blobs[own.update.model])
    store.put_statement(candidate.block.header.height, candidate.block)
    store.put_statement(5, own)
    store.prune(1)
    assert store.has_blob(own.update.model)
    store.append(candidate.block, candidate.certificate)


def put_on_trust(store: Store, num_whole: int, num_trusted: int) -> None:
    fill(store, num_whole)
    for stage in CHAIN.stages[num_whole : num_whole + num_trusted]:
        store.append(stage.block, stage.certificate, is_trusted=True)


def test_a_block_on_trust_needs_no_blobs_and_leaves_those_before_alone(store: Store) -> None:
    put_on_trust(store, 2, 2)
    assert (store.height, store.checkpoint, list(store.trusted)) == (4, 0, [3, 4])
    assert all(store.has_blob(blob) for stage in CHAIN.stages[:2] for blob in stage.blobs)
    assert store.prune(1).num_blocks == 0  # the last model that is here must stay
    assert not store.has_blob(CHAIN.stages[3].block.body.model)
    assert store.get_blob(CHAIN.stages[3].block.body.model) is None


def test_after_blocks_on_trust_a_whole_one_needs_the_model_before_it_and_prunes_up_to_there(store: Store) -> None:
    put_on_trust(store, 2, 2)
    after, model = CHAIN.stages[4], CHAIN.stages[3].block.body.model
    for blob, data in after.blobs.items():
        store.put_blob(blob, data)
    with pytest.raises(MisplacedBlock, match=model.hex()):
        store.append(after.block, after.certificate)
    store.put_blob(model, CHAIN.stages[3].blobs[model])
    store.append(after.block, after.certificate)
    assert (store.height, store.checkpoint, list(store.trusted)) == (5, 4, [3, 4])
    assert all(store.proof(height, 0) is not None for height in range(1, 5))
    put_stage(store, CHAIN.stages[5])
    store.prune(1)
    assert (store.checkpoint, list(store.trusted)) == (5, [3, 4])
    assert not any(store.has_blob(blob) for stage in CHAIN.stages[:4] for blob in stage.blobs)
    assert store.has_blob(CHAIN.stages[4].block.body.model)


def test_what_was_taken_on_trust_is_known_after_a_restart(tmp_path: Path) -> None:
    model = CHAIN.stages[3].block.body.model
    with ChainStore.create(tmp_path / "chain", CHAIN.genesis, CHAIN.initial_model, durable=False) as store:
        put_on_trust(store, 2, 2)
    with ChainStore.open(tmp_path / "chain", durable=False) as store:
        assert (store.height, store.trusted, store.has_blob(model)) == (4, [3, 4], False)
        store.put_blob(model, CHAIN.stages[3].blobs[model])
    with ChainStore.open(tmp_path / "chain", durable=False) as store:
        put_stage(store, CHAIN.stages[4])
    with ChainStore.open(tmp_path / "chain", durable=False) as store:
        assert (store.height, store.checkpoint, store.trusted, store.has_blob(model)) == (5, 4, [3, 4], True)


def test_blobs_that_no_block_rests_on_are_swept_when_their_height_is_decided(store: Store) -> None:
    left_over = b"a model nobody voted for"
    store.put_blob(digest(left_over), left_over)
    assert store.has_blob(digest(left_over))
    fill(store, 1)
    assert not store.has_blob(digest(left_over))
    assert store.get_blob(digest(left_over)) is None
    store.put_blob(digest(left_over), left_over)
    put_stage(store, CHAIN.stages[1])
    assert not store.has_blob(digest(left_over))
    store.put_blob(digest(b"of the open height"), b"of the open height")
    store.prune(1)
    assert store.has_blob(digest(b"of the open height"))


def test_a_blob_that_an_earlier_block_rests_on_stays_though_a_later_one_was_decided_without_it(store: Store) -> None:
    fill(store, 1)
    blob, data = next(iter(CHAIN.stages[0].blobs.items()))
    store.put_blob(blob, data)
    put_stage(store, CHAIN.stages[1])
    assert store.get_blob(blob) == data


def test_what_is_put_again_for_the_next_height_in_the_same_batch_is_kept(store: Store) -> None:
    left_over = b"a model nobody voted for"
    with store.batch():
        store.put_blob(digest(left_over), left_over)
        fill(store, 1)
        store.put_blob(digest(left_over), left_over)
    assert store.get_blob(digest(left_over)) == left_over


def test_what_is_swept_counts_no_more_against_the_quota(tmp_path: Path) -> None:
    left_over = bytes(100)
    needed = sum(map(len, CHAIN.stages[0].blobs.values())) + len(CHAIN.initial_model)
    quota = needed + 150
    stores = (
        ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model, durable=False, max_bytes=quota),
        MemoryStore(CHAIN.genesis, CHAIN.initial_model, max_bytes=quota),
    )
    for store in stores:
        store.put_blob(digest(left_over), left_over)
        fill(store, 1)
        with pytest.raises(QuotaExceeded):
            store.put_blob(digest(bytes(151)), bytes(151))
        store.put_blob(digest(bytes(101)), bytes(101))
    stores[0].close()


def test_every_update_is_proven_to_be_in_its_block_before_and_after_pruning(store: Store) -> None:
    fill(store, 4)
    store.prune(2)
    for stage in CHAIN.stages[:4]:
        height = stage.block.header.height
        for signed in stage.block.body.updates:
            proof = store.proof(height, signed.update.client)
            assert proof is not None
            assert proven_root(encode(signed), proof) == stage.block.header.body
        assert store.proof(height, 7) is None


def test_a_blob_is_not_taken_under_another_digest(tmp_path: Path) -> None:
    """In files only: a store in memory takes its caller's word."""
    with (
        ChainStore.create(tmp_path, CHAIN.genesis, CHAIN.initial_model, durable=False) as store,
        pytest.raises(NotKept, match="have digest"),
    ):
        store.put_blob(bytes(32), b"something else")


_STEPS = st.one_of(
    st.tuples(st.just("block"), st.integers(0, 3)),
    st.tuples(st.just("blobs"), st.integers(0, 3)),
    st.tuples(st.just("vote"), st.integers(1, 3)),
    st.tuples(st.just("candidate"), st.integers(0, 2)),
    st.tuples(st.just("prune"), st.integers(1, 3)),
    st.tuples(st.just("reopen"), st.just(0)),
)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(_STEPS, max_size=25))
def test_both_stores_always_answer_the_same(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]):
    path = tmp_path_factory.mktemp("chain")
    files = ChainStore.create(path, CHAIN.genesis, CHAIN.initial_model, durable=False)
    memory = MemoryStore(CHAIN.genesis, CHAIN.initial_model)
    try:
        for name, number in steps:
            if name == "reopen":
                files.close()
                files = ChainStore.open(path, durable=False)
            else:
                for store in (files, memory):
                    _play(store, name, number)
            assert _answers(files, CHAIN) == _answers(memory, CHAIN)
    finally:
        files.close()


def _play(store: Store, name: str, number: int) -> None:
    ahead = CHAIN.stages[store.height + number : store.height + number + 1]
    if name == "prune":
        store.prune(number)
    elif name == "vote":
        store.put_statement(store.height + 1, sample_vote(store.height + 1, number, bytes(32), 0))
        store.put_progress(store.height + 1, number, ())
    elif name == "block" and store.height < len(CHAIN.stages):
        put_stage(store, CHAIN.stages[store.height])
    elif name == "candidate" and ahead:
        store.put_statement(ahead[0].block.header.height, ahead[0].block)
    elif name == "blobs" and ahead:
        for blob, data in ahead[0].blobs.items():
            store.put_blob(blob, data)


def _answers(store: Store, chain: SampleChain) -> object:
    blobs = {blob for stage in chain.stages for blob in stage.blobs}
    rounds = [store.read_round(height) for height in range(1, len(chain.stages) + 2)]
    return store.height, store.checkpoint, rounds, {blob for blob in blobs if store.has_blob(blob)}
