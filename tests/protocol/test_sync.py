"""Catching up where updates are pruned: what a node takes on the word of certificates, and what it never does."""

import msgspec
import pytest

from bdfl.encoding import digest
from bdfl.identity import Meaning
from bdfl.ledger.block import Kind, ModelUpdate, SignedReport, SignedUpdate, SignedVote
from bdfl.ledger.chain_params import blob_limit
from bdfl.protocol.events import (
    Commit,
    FetchBlob,
    Measure,
    Refused,
    Send,
    ServeDecided,
    SetTimer,
    Started,
    Store,
    Timer,
    Train,
)
from bdfl.protocol.messages import Decided, DecidedWanted, Gossip, Proposal
from bdfl.protocol.state import Followed, Recovered
from bdfl.scenario import ServerOptimizer
from tests.protocol.manual_network import ManualNetwork, make_block, model_bytes, replace, replace_sender, vote
from tests.protocol.test_entries import leaves, offer

KEEP = 3
NUM_BLOCKS = 8


def played(num_blocks=NUM_BLOCKS, num_members=4, change=None, server=ServerOptimizer.NONE):
    network = ManualNetwork(num_members, server=server)
    network.start()
    if change is not None:
        offer(network, change(network))
    for _ in range(num_blocks):
        network.play_round()
    return network


def away(network, number=3, keep_blocks=KEEP):
    """A node at the beginning of the chain that the others have gone on with."""
    node = network.node(number, keep_blocks=keep_blocks)
    node.give(Started())
    return node


def tell(network, node, height, decided=None, sender=0):
    """Hands the node a decided block, as somebody tells it."""
    decided = Decided(*network.decided[height]) if decided is None else decided
    return node.hear(replace_sender(node.message(decided, height), sender))


def follow(network, node, last, first=1):
    for height in range(first, last + 1):
        tell(network, node, height)


def hand_over(network, node, blob, sender=0):
    return node.receive_blob(network.blobs[blob], sender)


def keep_models(network):
    """Keeps the global models where blobs are served from."""
    for node in network.nodes:
        for effect in node.effects:
            kept = getattr(effect, "kept", None)
            if hasattr(kept, "data"):
                network.blobs[kept.digest] = kept.data


def height_of(node):
    return node.state.chain.height


def trusted(node):
    return [found.block.header.height for found in node.did(Commit) if found.is_trusted]


# What is taken on trust


def test_only_what_lies_as_deep_as_updates_are_kept_below_a_certified_block_is_taken_on_trust():
    network = played()
    node = away(network)
    follow(network, node, KEEP)
    assert height_of(node) == 0  # whoever says that the updates are gone
    follow(network, node, NUM_BLOCKS, first=KEEP + 1)
    assert trusted(node) == list(range(1, NUM_BLOCKS - KEEP + 1))
    assert height_of(node) == NUM_BLOCKS - KEEP
    assert [found.chain.height for found in node.state.ahead] == list(range(NUM_BLOCKS - KEEP + 1, NUM_BLOCKS + 1))


def test_nothing_is_taken_on_trust_where_everything_is_kept():
    network = played()
    node = away(network, keep_blocks=0)
    follow(network, node, NUM_BLOCKS)
    assert (height_of(node), node.state.ahead) == (0, ())


@pytest.mark.parametrize("server", list(ServerOptimizer))
def test_with_the_model_of_the_last_one_on_trust_the_rest_is_recomputed(server):
    network = played(server=server)
    keep_models(network)
    node = away(network)
    follow(network, node, NUM_BLOCKS)
    node.hear(replace_sender(node.message(Gossip(1), NUM_BLOCKS + 1), 1))
    wanted = node.fetched()[-1]
    assert wanted == node.state.chain.model == network.decided[NUM_BLOCKS - KEEP][0].body.model
    hand_over(network, node, wanted)
    assert not node.state.lacks_model
    while node.state.wanted_blobs:
        hand_over(network, node, next(iter(node.state.wanted_blobs)))
    assert height_of(node) == NUM_BLOCKS
    assert len(trusted(node)) == NUM_BLOCKS - KEEP
    assert node.did(Train)[-1].height == NUM_BLOCKS + 1


@pytest.mark.parametrize("server", [ServerOptimizer.MOMENTUM, ServerOptimizer.ADAM])
def test_a_model_on_trust_must_have_its_moments_before_anything_is_recomputed_from_it(server):
    network = played(server=server)
    keep_models(network)
    node = away(network)
    follow(network, node, NUM_BLOCKS)
    node.hear(replace_sender(node.message(Gossip(1), NUM_BLOCKS + 1), 1))
    wanted = node.state.chain.model
    block, _ = network.decided[height_of(node) + 1]
    node.hear(replace_sender(node.message(Proposal(block)), 1))
    for signed in block.body.updates:
        hand_over(network, node, signed.update.model)
    assert not node.state.candidates[block.digest].is_valid
    size = len(network.initial)
    for bad in (network.blobs[wanted][:size], network.blobs[wanted][:-1], network.blobs[wanted][:-4] + bytes(4)):
        node.receive_blob(bad)
    assert node.state.lacks_model
    assert node.state.model == b""
    hand_over(network, node, wanted)
    assert height_of(node) > NUM_BLOCKS - KEEP
    assert digest(node.state.model) == node.state.chain.model


@pytest.mark.parametrize("server", [ServerOptimizer.MOMENTUM, ServerOptimizer.ADAM])
def test_bytes_of_the_certified_digest_that_are_no_model_are_refused(server):
    network = played(server=server)
    node = away(network)
    follow(network, node, NUM_BLOCKS)
    nonsense = network.initial + b"\xff" * (blob_limit(network.genesis) - len(network.initial))
    chain = replace(node.state.chain, model=digest(nonsense))
    lost = network.node(2, Recovered(lacks_model=True), chain, keep_blocks=KEEP)
    lost.give(Started())
    lost.receive_blob(nonsense)
    assert lost.state.lacks_model
    assert "model-parent" in lost.did(Refused)[-1].reason


@pytest.mark.parametrize("server", [ServerOptimizer.MOMENTUM, ServerOptimizer.ADAM])
def test_the_global_model_with_its_moments_is_nobodys_update(server):
    network = played(2, server=server)
    keep_models(network)
    node, liar = network.nodes[0], network.nodes[1]
    model = node.state.chain.model
    update = ModelUpdate(1, node.state.chain.members[1].limits.samples, len(network.initial), model, 0)
    signed = SignedUpdate(update, liar.context.signer.sign(Meaning.UPDATE, node.state.chain.place, update))
    node.hear(liar.message(Gossip(1, updates=(signed,))))
    assert model in node.state.wanted_blobs
    hand_over(network, node, model, sender=1)
    assert 1 not in node.state.updates
    assert "blob-size" in node.did(Refused)[-1].reason


@pytest.mark.parametrize("is_late", [False, True])
def test_who_has_no_data_is_heard_whoever_else_names_the_global_model(is_late):
    network = ManualNetwork(server=ServerOptimizer.MOMENTUM, samples=[100, 100, 0, 100])
    node, liar, idle = network.nodes[:3]
    network.start()
    network.deliver(idle, idle.did(Send))
    network.play_round()
    keep_models(network)
    [honest] = idle.state.updates.values()
    assert honest.update.model == node.state.chain.model
    update = msgspec.structs.replace(honest.update, client=1, samples=100)
    false = SignedUpdate(update, liar.context.signer.sign(Meaning.UPDATE, node.state.chain.place, update))
    node = network.node(0, Recovered(model=network.blobs[honest.update.model]), node.state.chain)
    node.give(Started())
    if not is_late:
        node.hear(idle.message(Gossip(1, updates=(honest,))))
    node.hear(liar.message(Gossip(1, updates=(false,))))
    hand_over(network, node, honest.update.model, sender=1)
    assert "blob-size" in node.did(Refused)[-1].reason
    node.hear(idle.message(Gossip(1, updates=(honest,))))
    assert node.state.updates == {2: honest}


def test_no_model_is_asked_for_on_the_way():
    network = played()
    node = away(network, keep_blocks=1)
    follow(network, node, NUM_BLOCKS)
    first = {signed.update.model for signed in network.decided[1][0].body.updates}
    assert set(node.fetched()) <= first
    network.fire(node, Timer.RESEND)
    asked = set(node.fetched()) - first
    assert asked == {network.decided[NUM_BLOCKS - 1][0].body.model}


def test_each_block_is_asked_of_whoever_told_the_one_before():
    network = played()
    node = away(network)
    effects = tell(network, node, 1, sender=2)
    asked = [effect for effect in effects if isinstance(effect, Send) and effect.message.content == DecidedWanted()]
    assert [(effect.to, effect.message.height) for effect in asked] == [(2, 2)]
    ahead = replace_sender(node.message(Gossip(1), 5), 1)
    again = [node.hear(ahead), node.hear(ahead), node.hear(replace_sender(node.message(Gossip(1, True), 5), 1))]
    assert [[(effect.to, effect.message.height) for effect in effects] for effects in again] == [[(1, 2)], [], [(1, 2)]]


def test_with_everything_else_the_block_after_those_followed_is_asked_for_again():
    network = played()
    node = away(network)
    follow(network, node, 2)
    effects = network.fire(node, Timer.RESEND)
    asked = [one for one in effects if isinstance(one, Send) and one.message.content == DecidedWanted()]
    assert [one.message.height for one in asked] == [3]
    assert asked[0].to != node.number


# What it never is


def test_a_node_without_its_model_follows_and_says_nothing_of_its_own():
    network = played()
    node = away(network)
    follow(network, node, NUM_BLOCKS)
    node.effects[:] = node.did(SetTimer)
    height = height_of(node)
    block, certificate = network.decided[height + 1]
    node.hear(replace_sender(node.message(Proposal(block)), 1))
    node.hear(replace_sender(node.message(Gossip(1, votes=certificate)), 1))
    for blob in node.state.wanted_blobs.keys() - {node.state.chain.model}:
        hand_over(network, node, blob)
    for timer in (Timer.DEADLINE, Timer.RESEND):
        network.fire(node, timer)
    assert height_of(node) == height
    kept = [getattr(effect.kept, "statement", None) for effect in node.did(Store)]
    assert not any(isinstance(one, (SignedVote, SignedUpdate, SignedReport)) for one in kept)
    assert node.did(Train) == node.did(Measure) == []


def test_a_restart_without_the_model_asks_for_it_first():
    network = played()
    keep_models(network)
    chain = away(network)
    follow(network, chain, NUM_BLOCKS)
    node = network.node(3, Recovered(lacks_model=True), chain.state.chain, keep_blocks=KEEP)
    node.give(Started())
    assert node.fetched() == [node.state.chain.model]
    assert node.did(Train) == node.did(Measure) == []
    hand_over(network, node, node.state.chain.model)
    assert len(node.did(Train)) == len(node.did(Measure)) == 1


def test_who_starts_asks_the_member_after_it_first_and_then_each_other_in_turn():
    network = played()
    chain = away(network)
    follow(network, chain, NUM_BLOCKS)
    node = network.node(2, Recovered(lacks_model=True), chain.state.chain, keep_blocks=KEEP)
    asked = [node.give(Started()), *(network.fire(node, Timer.RESEND) for _ in range(4))]
    wanted = [[one.holder for one in effects if isinstance(one, FetchBlob)] for effects in asked]
    assert wanted == [[3], [0], [1], [3], [3]]  # its own turn is the next one's


def test_another_model_than_the_one_certified_is_not_taken():
    network = played()
    node = away(network)
    follow(network, node, NUM_BLOCKS)
    network.fire(node, Timer.RESEND)
    node.receive_blob(model_bytes(6.0, 6.0, 6.0, 6.0))
    assert node.state.lacks_model


def forge(network, height, kind):
    block, certificate = network.decided[height]
    node = network.nodes[0]
    return {
        "too few votes": Decided(block, certificate[:1]),
        "no votes": Decided(block, ()),
        "prevotes": Decided(block, tuple(vote(node, Kind.PREVOTE, 1, block.digest, number=one) for one in range(4))),
        "votes for another block": Decided(block, network.decided[height + 1][1]),
        "votes of another height": Decided(
            block, tuple(vote(node, Kind.PRECOMMIT, 1, block.digest, number=one) for one in range(4))
        ),
        "another body": Decided(msgspec.structs.replace(block, body=network.decided[height + 1][0].body), certificate),
        "another block": Decided(*network.decided[height + 1]),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "too few votes",
        "no votes",
        "prevotes",
        "votes for another block",
        "votes of another height",
        "another body",
        "another block",
    ],
)
def test_no_forged_certificate_is_followed(kind):
    network = played()
    node = away(network)
    follow(network, node, KEEP)
    before = node.state.ahead
    effects = tell(network, node, KEEP + 1, forge(network, KEEP + 1, kind))
    assert [type(effect) for effect in effects] == [Refused]
    assert (node.state.ahead, height_of(node)) == (before, 0)


def test_a_certificate_counts_by_the_members_of_its_own_height():
    """Who was removed cannot certify a later block, and the quorum is that of those who are left."""
    network = played(6, num_members=5, change=lambda network: leaves(network, 4))
    node = away(network)
    follow(network, node, 3)
    block, certificate = network.decided[4]
    assert 4 not in {signed.vote.voter for signed in certificate}
    former = vote(network.nodes[0], Kind.PRECOMMIT, 1, block.digest, number=4)
    effects = tell(network, node, 4, Decided(block, (*certificate[:1], former, *certificate[1:0])))
    assert [type(effect) for effect in effects] == [Refused]
    mixed = Decided(block, (*certificate, former))
    assert [type(effect) for effect in tell(network, node, 4, mixed)] == [Refused]
    tell(network, node, 4)
    assert trusted(node) == [1]


def test_a_checkpoint_far_ahead_or_behind_is_nothing_to_go_by():
    network = played()
    node = away(network)
    for height in (NUM_BLOCKS, 2):
        assert tell(network, node, height) == []
    follow(network, node, NUM_BLOCKS)
    before = node.state
    assert tell(network, node, 1) == tell(network, node, NUM_BLOCKS - KEEP) == []
    assert (node.state.ahead, node.state.chain) == (before.ahead, before.chain)


def test_what_was_found_wrong_is_never_taken_on_trust():
    """A quorum of liars certified a wrong model whose updates are here: no later certificate changes that."""
    network = ManualNetwork(4)
    network.start()
    network.collect()
    wrong = make_block(network.nodes[0], change={"model": network.genesis.model.initial})
    precommits = tuple(vote(network.nodes[0], Kind.PRECOMMIT, 1, wrong.digest, number=one) for one in range(3))
    node = away(network, keep_blocks=1)
    tell(network, node, 1, Decided(wrong, precommits))
    for blob in list(node.state.wanted_blobs):
        hand_over(network, node, blob)
    assert wrong.digest in node.state.refused
    head = node.state.ahead[-1]
    later = Followed(head.block, head.certificate, head.teller, replace(head.chain, height=2))
    node.state = replace(node.state, ahead=(head, later))
    node.give(Started())
    assert height_of(node) == 0


def test_a_node_commits_the_block_that_it_checked_whatever_was_followed_before():
    """Liars certified a wrong block; a second quorum is for the right one: the chain goes on from that."""
    network = ManualNetwork(4)
    network.start()
    network.collect()
    wrong = make_block(network.nodes[0], change={"model": network.genesis.model.initial})
    precommits = tuple(vote(network.nodes[0], Kind.PRECOMMIT, 1, wrong.digest, number=one) for one in range(3))
    network.deliver(network.nodes[1], network.mine(network.nodes[1]))
    right, _ = network.decided[1]
    node = away(network, keep_blocks=2)
    tell(network, node, 1, Decided(wrong, precommits))
    for blob in list(node.state.wanted_blobs):
        hand_over(network, node, blob)
    assert wrong.digest in node.state.refused
    assert [found.block for found in node.state.ahead] == [wrong]
    tell(network, node, 1)
    for blob in list(node.state.wanted_blobs):
        hand_over(network, node, blob)
    assert (height_of(node), node.state.chain.tip) == (1, right.digest)
    assert node.state.chain.model == right.body.model
    assert node.state.ahead == ()


# Those who were removed


def test_who_was_removed_is_told_so_many_blocks_more_as_certify_its_last():
    network = played(6, num_members=5, change=lambda network: leaves(network, 4))
    node = network.node(1, keep_blocks=2)
    follow(network, node, 6)
    last = node.state.chain.last_height(4)
    for height in range(1, last + 3):
        asked = node.hear(replace_sender(node.message(DecidedWanted(), height), 4))
        assert asked == ([ServeDecided(4, height)] if height <= height_of(node) else [])
    for content, height in ((DecidedWanted(), last + 3), (Gossip(1), last + 1)):
        refused = node.hear(replace_sender(node.message(content, height), 4))
        assert [type(effect) for effect in refused] == [Refused]
