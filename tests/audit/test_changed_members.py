"""What an auditor is told of a chain whose members changed: in block 5 one joins, in block 6 one is removed."""

from io import StringIO

import pytest
from rich.console import Console

from bdfl.audit.influence import blame_clients, leave_out
from bdfl.audit.lineage import NotOnChain, describe_change, member_set_of, prove_update, trace_model, validate_client
from bdfl.audit.summary import summarise_chain
from bdfl.report.chain_tables import tabulate_block, tabulate_chain
from tests.ledger.lying import new_maker
from tests.vectors.make_vectors import make_chain

CHAIN = make_chain().store


def printed(*tables):
    console = Console(file=StringIO(), width=80)
    console.print(*tables)
    return " ".join(console.file.getvalue().split())


def test_the_summary_counts_members_of_now_and_says_since_and_until_when_each_is_one():
    summary = summarise_chain(CHAIN)
    assert (summary.num_active, summary.quorum) == (4, 3)
    assert [(member.since, member.until) for member in summary.members] == [
        (1, None),
        (1, None),
        (1, 7),
        (1, None),
        (7, None),
    ]
    assert [block.change for block in summary.blocks[4:6]] == [
        "member 4 joins from height 7 on",
        "member 2 is removed from height 8 on",
    ]
    assert summary.blocks[1].offenders == (2,)
    assert summary.members[4].in_certificates == 2


def test_a_chain_in_which_nobody_came_or_went_says_nothing_of_heights():
    maker = new_maker()
    maker.grow(2)
    assert "heights" not in printed(*tabulate_chain(summarise_chain(maker.store)))
    assert describe_change(maker.store.block(1)) == ""


def test_tables_tell_of_changes_in_plain_words():
    shown = printed(*tabulate_chain(summarise_chain(CHAIN), all_blocks=True))
    assert "4, of which 3 decide (bft)" in shown
    assert "1 to 7" in shown
    joins = printed(*tabulate_block(CHAIN.block(5), CHAIN.certificate(5)))
    assert "member 4 joins from height 7 on; agreed to by members 0-3" in joins
    leaves = printed(*tabulate_block(CHAIN.block(6), CHAIN.certificate(6)))
    assert "member 2 is removed from height 8 on; agreed to by members 0 1 3" in leaves


def test_every_block_can_be_shown():
    for height in range(1, CHAIN.height + 1):
        assert f"Block {height} of chain" in printed(*tabulate_block(CHAIN.block(height), CHAIN.certificate(height)))


def test_who_joined_is_traced_judged_proven_and_left_out_like_a_founder():
    trace = trace_model(CHAIN, 8)
    assert len(trace.contributions) == 5
    assert (trace.contributions[4].since, trace.contributions[4].samples) == (8, 500)
    assert len(trace_model(CHAIN, 4).contributions) == 4
    assert prove_update(CHAIN, 8, 4).update.update.client == 4
    assert leave_out(CHAIN, 4).changed_in == (8,)
    verdicts = blame_clients(CHAIN, lambda model: float(model.sum()), first=8).verdicts
    assert {verdict.client for verdict in verdicts} == {0, 1, 2, 3, 4}


def test_who_was_removed_is_still_known():
    validate_client(CHAIN, 2)
    validate_client(CHAIN, 4)
    with pytest.raises(NotOnChain, match="client 5: no member of the chain, 0 to 4 expected"):
        validate_client(CHAIN, 5)
    assert member_set_of(CHAIN).active == {0, 1, 3, 4}
