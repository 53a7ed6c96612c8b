"""A chain whose members change: four at first, everybody's key at hand."""

from bdfl.learning.weights import encode_weights
from bdfl.ledger.block import Admission, Kind, Law, Member, MembershipChange, Removal, TwoVotes
from bdfl.ledger.rules import validate_model, validate_proposal
from bdfl.ledger.statements import make_change
from bdfl.ledger.store import MemoryStore
from bdfl.scenario.schema_learning import QuorumRule, WorkKind
from benchmarks.ledger.valid_chain import (
    CONDITIONS,
    SMALL,
    ChainMaker,
    example_genesis,
    example_limits,
    example_signer,
    example_weights,
)

INITIAL = encode_weights(example_weights(0), SMALL)
BFT = Law(QuorumRule.BFT, WorkKind.SHA256, 4, 0, "mean", 0, 1, 3600 * 10**9)
EXPIRES = 50


def new_maker(num_members=4, *, law=BFT, scheduler="all", store=None, **genesis):
    samples = [100 * (number + 1) for number in range(num_members)]
    genesis = example_genesis(INITIAL, samples=samples, law=law, scheduler=scheduler, **genesis)
    store = MemoryStore(genesis, INITIAL) if store is None else store(genesis)
    return ChainMaker(store, [example_signer(number) for number in range(12)])


def newcomer(number, key=None, **limits):
    """Somebody who would be a member under that number."""
    chosen = example_limits(1000 * number)
    for name, value in limits.items():
        chosen = type(chosen)(**({field: getattr(chosen, field) for field in chosen.__struct_fields__} | {name: value}))
    return Member(example_signer(number if key is None else key).public_key, chosen, CONDITIONS)


def signed(maker, change, *, by=None, expires=EXPIRES) -> MembershipChange:
    """The change with the assents of these members, all of them unless given."""
    who = sorted(maker.state.active) if by is None else by
    return make_change(maker.state.chain, change, expires, {number: maker.signers[number] for number in who})


def admission(maker, number=None, **options) -> MembershipChange:
    number = maker.state.coming_params.num_members if number is None else number
    return signed(maker, Admission(number, newcomer(number)), **options)


def removal(maker, number, **options) -> MembershipChange:
    return signed(maker, Removal(number), **options)


def two_votes(maker, voter, place=None) -> TwoVotes:
    """A member voted for two blocks."""
    place = maker.state.place if place is None else place
    votes = [maker.sign_vote(voter, bytes([number]) * 32, kind=Kind.PREVOTE) for number in range(2)]
    return TwoVotes(place, *votes)


def next_block(maker, *entries, proposer=None, reporters=None, trainers=None):
    """The next block with these entries: everybody takes part who is a member."""
    members = sorted(maker.state.active)
    who = maker.state.schedule.selected if trainers is None else trainers
    updates = [maker.sign_update(client, example_weights(17 * maker.state.height + client)) for client in who]
    reports = [maker.sign_report(client) for client in (members if reporters is None else reporters)]
    proposer = members[maker.state.height % len(members)] if proposer is None else proposer
    return maker.make_block(updates, reports, entries=entries, proposer=proposer)


def judge(maker, block):
    """Raises unless the block is valid on the chain."""
    validate_proposal(maker.state, block, maker.cache)
    wanted = [update.update.model for update in block.body.updates]
    validate_model(maker.state, block, {blob: maker.store.get_blob(blob) for blob in wanted}, maker.cache)


def play(maker, *entries, voters=None, **options):
    """Adds a valid block with these entries."""
    block = next_block(maker, *entries, **options)
    judge(maker, block)
    maker.commit(block, voters=voters)
    return block
