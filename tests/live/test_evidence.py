"""A member that provably lies on a real network is recorded with the evidence, and the others go on without it."""

from contextlib import ExitStack

import pytest

from bdfl.encoding import digest, record_digest
from bdfl.identity import Meaning
from bdfl.ledger.block import ModelUpdate, SignedUpdate, SignedVote, TwoUpdates, TwoVotes
from bdfl.ledger.member_set import find_evidence, offender_of
from bdfl.ledger.verify import verify_chain
from bdfl.protocol.messages import Gossip, Message
from bdfl.transports.live.certificates import issue_leaf, make_authority, member_name, roots_pem, write_tls
from bdfl.transports.live.driver import LiveNode
from bdfl.transports.live.zenoh_link import ZenohLink
from bdfl.transports.live.zenoh_session import LinkSettings
from tests.live.memory_network import FormulaWork, MemoryNetwork, NodeThread, running, wait_until
from tests.live.network_of_links import free_ports

LIAR = 3
LIE_AT = 2  # height
MORE = 3  # blocks after the evidence
ANOTHER = digest(b"another one")


class TwoFacedLink:
    """A link that adds to what an honest node says: another vote or update, and updates that nobody waits for.

    It lies once a height until it is convicted: others may have decided a height before a lie about it reaches them.
    """

    def __init__(self, link, signer, lie):
        self.link, self.signer, self.lie = link, signer, lie
        self.node = None
        self.lied_at = 0  # height
        self.num_late_updates = 0

    def __getattr__(self, name):
        return getattr(self.link, name)

    @property
    def present(self):
        return self.link.present

    def send(self, to, message):
        self.link.send(to, message)
        chain = self.node.state.chain
        if not isinstance(message.content, Gossip) or message.height != chain.height + 1:
            return
        if LIAR in chain.offenders:
            self.num_late_updates += 1
            self.say(chain, Gossip(1, updates=(self.update(chain, chain.model),)))
        elif chain.height + 1 >= LIE_AT and self.lied_at <= chain.height and self.tell_lie(chain, message.content):
            self.lied_at = chain.height + 1

    def tell_lie(self, chain, content):
        votes = [signed.vote for signed in content.votes if signed.vote.voter == LIAR]
        if self.lie is TwoVotes and votes:
            other = replace_record(votes[-1], block=ANOTHER)
            self.say(chain, Gossip(1, votes=(SignedVote(other, self.signer.sign(Meaning.VOTE, chain.place, other)),)))
            return True
        if self.lie is TwoUpdates and any(signed.update.client == LIAR for signed in content.updates):
            self.say(chain, Gossip(1, updates=(self.update(chain, ANOTHER),)))
            return True
        return False

    def update(self, chain, model):
        given = ModelUpdate(LIAR, chain.members[LIAR].limits.samples, chain.genesis.model.size, model, 0)
        return SignedUpdate(given, self.signer.sign(Meaning.UPDATE, chain.place, given))

    def say(self, chain, content):
        self.link.send(None, Message(chain.chain, LIAR, chain.height + 1, content))


def replace_record(record, **changes):
    return type(record)(**{name: changes.get(name, getattr(record, name)) for name in record.__struct_fields__})


def open_links(network, folder):
    """A link for each member, with mTLS."""
    ports = free_ports(network.count)
    addresses = tuple(f"127.0.0.1:{port}" for port in ports)
    authorities = [make_authority(signer, f"authority-{number}") for number, signer in enumerate(network.signers)]
    roots = roots_pem(authorities)
    for number, signer in enumerate(network.signers):
        key, leaf = issue_leaf(signer, authorities[number], member_name(number), ("127.0.0.1",))
        yield ZenohLink(
            LinkSettings(
                number=number,
                signer=signer,
                chain=record_digest(network.genesis),
                public_keys=[signer.public_key for signer in network.signers],
                incarnation=1,
                listen=(addresses[number],),
                peers=addresses[:number],
                tls=write_tls(folder / f"tls-{number}", key, leaf, roots),
                max_blob_size=network.genesis.model.size,
            )
        )


def build_houses(network, folder, lie):
    for number, link in enumerate(open_links(network, folder)):
        used = TwoFacedLink(link, network.signers[LIAR], lie) if number == LIAR else link
        store, work = network.memory_store(), FormulaWork(network, number)
        node = LiveNode(network.context(number), store, used, work)
        if number == LIAR:
            used.node = node
        yield NodeThread(node, store, used, work)


def evidence_in(store):
    """Height and evidence of each entry."""
    return [(block.header.height, one) for block in store.blocks() for one in find_evidence(block.body.entries)]


@pytest.mark.parametrize("lie", [TwoVotes, TwoUpdates])
def test_a_member_that_lies_is_recorded_and_its_later_updates_are_ignored_while_the_network_goes_on(tmp_path, lie):
    network = MemoryNetwork(tmp_path)
    threads = list(build_houses(network, tmp_path, lie))
    honest, liar = threads[:LIAR], threads[LIAR]
    with ExitStack() as stack:
        stack.enter_context(running(*threads))
        wait_until(lambda: all(LIAR in thread.node.state.chain.offenders for thread in honest))
        reached = max(thread.node.state.chain.height for thread in honest)
        wait_until(lambda: all(thread.node.state.chain.height >= reached + MORE for thread in honest))
        wait_until(lambda: liar.link.num_late_updates and all(thread.node.status().refused for thread in honest))
    for thread in honest:
        assert thread.error is None
        [(height, evidence)] = evidence_in(thread.store)
        assert isinstance(evidence, lie)
        assert offender_of(evidence) == LIAR
        assert height >= LIE_AT
        later = [block for block in thread.store.blocks() if block.header.height > height]
        assert len(later) >= MORE
        assert all(signed.update.client != LIAR for block in later for signed in block.body.updates)
        assert all(LIAR not in block.body.next_schedule.selected for block in later)
        assert all(block.body.updates for block in later)
        assert verify_chain(thread.store).failure is None
    shortest = min(thread.store.height for thread in honest)
    assert len({thread.store.block(shortest).digest for thread in honest}) == 1
