"""What a chain asks of an epsilon: none where nothing is private, and elsewhere one that never falls."""

import sqlite3

import msgspec
import pytest

from bdfl.ledger.block import FORMAT, Privacy
from bdfl.ledger.cache import VerificationCache
from bdfl.ledger.chain import mechanism_on, spent_after
from bdfl.ledger.errors import BadUpdate, InvalidGenesis
from bdfl.ledger.genesis import draft_genesis, validate_genesis
from bdfl.ledger.sqlite_store import ChainStore, NotAStore
from bdfl.ledger.statements import validate_update
from bdfl.ledger.store import MemoryStore
from bdfl.ledger.verify import verify_chain
from bdfl.scenario import Accountant, LocalUnit, Scenario, override_scenario
from benchmarks.ledger.valid_chain import SMALL, ChainMaker, example_genesis, example_weights
from tests.ledger.lying import INITIAL, SIGNERS

PRIVACY = Privacy(1_100_000, 10**6, 10**13, Accountant.RDP, 32, 5, LocalUnit.UPDATES)


def new_maker(privacy=PRIVACY, **changes):
    return ChainMaker(MemoryStore(example_genesis(INITIAL, privacy=privacy, **changes), INITIAL), SIGNERS)


def stating(maker, epsilon_micro, client=0, weights=True):
    """The client's update of the next round, but for what it says that it spent."""
    signed = maker.sign_update(client, example_weights(client) if weights else None)
    return maker.sign(msgspec.structs.replace(signed.update, epsilon_micro=epsilon_micro))


def test_a_chain_keeps_what_everybody_stated_and_how_often_they_were_to_train():
    maker = new_maker()
    maker.grow(3)
    assert maker.state.rounds_scheduled == (3, 3, 3, 3)
    assert maker.state.epsilon_micro == (750_000,) * 4
    reports = [maker.sign_report(client) for client in range(4)]
    maker.commit(maker.make_block([maker.sign_update(1, example_weights(1))], reports))  # three are not heard of
    assert maker.state.rounds_scheduled == (4, 4, 4, 4)
    assert maker.state.epsilon_micro == (750_000, 1_000_000, 750_000, 750_000)
    assert verify_chain(maker.store).is_valid


@pytest.mark.parametrize(
    ("epsilon_micro", "is_valid"), [(749_999, False), (750_000, True), (750_001, True), (0, False), (-1, False)]
)
def test_an_epsilon_never_falls(epsilon_micro, is_valid):
    maker = new_maker()
    maker.grow(3)
    signed = stating(maker, epsilon_micro)
    if is_valid:
        validate_update(maker.state, signed, maker.cache)
        return
    with pytest.raises(BadUpdate, match=r"^update-epsilon: .*at least 750000 millionths"):
        validate_update(maker.state, signed, maker.cache)


def test_who_gives_a_model_has_spent_something_and_who_gives_none_need_not():
    maker = new_maker()
    with pytest.raises(BadUpdate, match="update-epsilon"):
        validate_update(maker.state, stating(maker, 0), maker.cache)
    validate_update(maker.state, stating(maker, 0, weights=False), maker.cache)


@pytest.mark.parametrize(("privacy", "samples"), [(None, (100, 200, 300, 400)), (PRIVACY, (0, 200, 300, 400))])
def test_where_nothing_is_private_or_there_are_no_data_nothing_is_spent(privacy, samples):
    maker = new_maker(privacy, samples=samples)
    validate_update(maker.state, stating(maker, 0), maker.cache)
    with pytest.raises(BadUpdate, match="update-epsilon"):
        validate_update(maker.state, stating(maker, 1), maker.cache)


def test_the_genesis_holds_all_that_epsilon_depends_on():
    changes = ["privacy.noise_multiplier=1.25", "privacy.delta=1e-6", "learning.batch=16", "learning.unit=epochs"]
    scenario = override_scenario(Scenario(), [*changes, "learning.local_steps=2"])
    genesis = draft_genesis(scenario, example_genesis(INITIAL).members, SMALL, INITIAL)
    assert genesis.privacy == Privacy(1_250_000, 10**6, 10**12, Accountant.RDP, 16, 2, LocalUnit.EPOCHS)
    assert draft_genesis(Scenario(), genesis.members, SMALL, INITIAL).privacy is None


def test_an_epsilon_alone_founds_no_live_network():
    scenario = override_scenario(Scenario(), ["privacy.epsilon=3.0"])
    with pytest.raises(InvalidGenesis, match=r"^privacy: .*noise_multiplier"):
        draft_genesis(scenario, example_genesis(INITIAL).members, SMALL, INITIAL)


def test_a_chain_of_the_former_format_is_refused_in_one_line(tmp_path):
    genesis = msgspec.structs.replace(example_genesis(INITIAL), format=FORMAT - 1)
    with pytest.raises(InvalidGenesis, match=r"^format: "):
        validate_genesis(genesis, VerificationCache())
    ChainStore.create(tmp_path / "chain", example_genesis(INITIAL), INITIAL, durable=False).close()
    database = sqlite3.connect(tmp_path / "chain" / "chain.sqlite")
    database.execute("PRAGMA user_version = 1")
    database.close()
    with pytest.raises(NotAStore, match=r"format 1 found, .* reads format 2: an older bdfl wrote it"):
        ChainStore.open(tmp_path / "chain")


def test_nothing_is_spent_where_training_is_not_private():
    assert spent_after(new_maker(privacy=None).state, 0) == 0


def test_what_will_be_spent_counts_every_round_that_a_member_was_to_train_in_and_the_next(monkeypatch):
    asked = []
    monkeypatch.setattr("bdfl.ledger.chain.spent_micro", lambda *question: asked.append(question) or 7)
    maker = new_maker()
    maker.grow(2)
    assert spent_after(maker.state, 1) == 7
    samples = maker.state.members[1].limits.samples
    assert asked == [(mechanism_on(PRIVACY, samples), 3)]
    assert (asked[0][0].samples, asked[0][0].batch, asked[0][0].noise_micro) == (samples, 32, 1_100_000)
