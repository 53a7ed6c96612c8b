"""What members state that they spent is computed again, and who states something else is named."""

import msgspec
import pytest

from bdfl.audit.lineage import NotOnChain
from bdfl.audit.summary import Judgement, audit_privacy
from bdfl.learning.privacy_accounting import spent_micro
from bdfl.ledger.block import Privacy
from bdfl.ledger.chain import mechanism_on, spent_after
from bdfl.ledger.store import MemoryStore
from bdfl.scenario import Accountant, LocalUnit
from benchmarks.ledger.valid_chain import ChainMaker, example_genesis, example_weights
from tests.ledger.lying import INITIAL, SIGNERS

PRIVACY = Privacy(1_500_000, 10**6, 10**13, Accountant.RDP, 32, 5, LocalUnit.UPDATES)


class HonestMaker(ChainMaker):
    """Members that state what the accountant says, but for those who lie."""

    lies: dict[tuple[int, int], int] = {}  # noqa: RUF012 (each test gives its own): factors by client and round

    def sign_update(self, client, weights):
        signed = super().sign_update(client, weights)
        due = max(spent_after(self.state, client), self.state.epsilon_micro[client])
        stated = round(due * self.lies.get((client, self.state.height + 1), 1))
        return self.sign(msgspec.structs.replace(signed.update, epsilon_micro=stated if signed.update.samples else 0))


def grown(num_blocks, lies=(), samples=(100, 200, 0, 400)):
    maker = HonestMaker(MemoryStore(example_genesis(INITIAL, privacy=PRIVACY, samples=samples), INITIAL), SIGNERS)
    maker.lies = dict(lies)
    maker.grow(num_blocks)
    return maker


def test_what_honest_members_state_is_right():
    maker = grown(3)
    found = audit_privacy(maker.store)
    assert found.is_right
    assert [one.judgement for one in found.members] == [Judgement.RIGHT] * 2 + [Judgement.SILENT, Judgement.RIGHT]
    assert [one.steps for one in found.members] == [15, 15, 0, 15]
    for one, samples in zip(found.members, (100, 200, 0, 400), strict=True):
        expected = spent_micro(mechanism_on(PRIVACY, samples), 3) / 10**6
        assert one.stated == one.recomputed == one.spent == expected
    assert found.highest == found.members[0].spent > found.members[3].spent > 0
    assert (found.noise_multiplier, found.delta, found.accountant) == (1.5, 1e-5, "rdp")


@pytest.mark.parametrize(
    ("lies", "judgement"),
    [({(1, 3): 0.9}, Judgement.TOO_LOW), ({(1, 3): 1.1}, Judgement.TOO_HIGH)],
)
def test_a_member_that_states_something_else_is_named_with_the_first_block(lies, judgement):
    found = audit_privacy(grown(4, lies).store)
    assert not found.is_right
    assert [one.judgement for one in found.members if one.client != 2 and one.client != 1] == [Judgement.RIGHT] * 2
    assert (found.members[1].judgement, found.members[1].block) == (judgement, 3)


def test_a_round_counts_also_for_who_was_not_heard_of():
    maker = grown(2)
    reports = [maker.sign_report(client) for client in range(4)]
    maker.commit(maker.make_block([maker.sign_update(1, example_weights(9))], reports))
    found = audit_privacy(maker.store)
    assert found.is_right
    missed, heard = found.members[0], found.members[1]
    assert (missed.rounds, missed.updates, heard.rounds, heard.updates) == (3, 2, 3, 3)
    assert missed.spent > missed.stated == missed.recomputed


def test_a_training_that_gave_nothing_need_not_spend():
    maker = grown(2)
    declined = ChainMaker.sign_update(maker, 0, None).update
    before = msgspec.structs.replace(declined, epsilon_micro=maker.state.epsilon_micro[0])
    reports = [maker.sign_report(client) for client in range(4)]
    maker.commit(maker.make_block([maker.sign(before), maker.sign_update(1, example_weights(9))], reports))
    assert audit_privacy(maker.store).is_right


def test_a_chain_that_is_not_private_has_nothing_to_compute():
    with pytest.raises(NotOnChain, match=r"^privacy: this chain has none"):
        audit_privacy(MemoryStore(example_genesis(INITIAL), INITIAL))
