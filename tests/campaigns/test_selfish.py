"""Selfish members: none wins more than its share, slows the others down for long, or escapes its removal."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from campaigns.faults.attacks import Attack
from campaigns.faults.laws import ENTRY_BLOCKS
from campaigns.faults.shares import is_too_large
from campaigns.selfish.__main__ import app
from campaigns.selfish.judging import MAX_SLOWDOWN, judge, slowdown
from campaigns.selfish.live import LiveKind, run_live
from campaigns.selfish.playing import Setting, play

NUM_NODES = 4


@pytest.mark.parametrize("attack", [Attack.WITHHOLD, Attack.RELEASE])
@pytest.mark.parametrize(("num_nodes", "min_selected"), [(4, 2), (4, 4), (7, 2), (7, 7)])
def test_withholding_ones_statements_wins_no_blocks(attack, num_nodes, min_selected):
    found = play(Setting(seed=1, num_nodes=num_nodes, min_selected=min_selected, attack=attack))
    assert len(found.proposers) == 60
    assert found.num_won <= sum(found.shares)


@pytest.mark.parametrize("num_nodes", [4, 7])
def test_who_alone_hears_a_members_statements_wins_no_more_than_its_share(num_nodes):
    found = play(Setting(seed=1, num_nodes=num_nodes, attack=Attack.CONFIDE))
    assert judge(found, None, 1).broken == ()


def test_saying_another_report_than_ones_block_has_wins_no_blocks():
    found = play(Setting(seed=221, num_nodes=9, min_selected=9, scheduler="random", attack=Attack.SLOW, num_blocks=40))
    assert not is_too_large(found.num_won, len(found.proposers), sum(found.shares))


@pytest.mark.parametrize("attack", Attack)
def test_the_mean_round_is_at_most_twice_as_long_beside_a_selfish_member(attack):
    assert slowdown(play(Setting(seed=2, num_nodes=NUM_NODES, scheduler="random", attack=attack))) <= MAX_SLOWDOWN


@pytest.mark.parametrize("attack", [Attack.WITHHOLD, Attack.RELEASE, Attack.CENSOR])
def test_a_removal_that_a_quorum_signed_is_on_the_chain_within_five_blocks(attack):
    found = play(Setting(seed=3, num_nodes=NUM_NODES, attack=attack, is_removed=True, num_blocks=ENTRY_BLOCKS))
    assert found.removed_at is not None


def test_the_share_law_notices_a_member_that_wins_every_block_and_one_that_wins_a_fifth_more_of_many():
    found = play(Setting(seed=4, num_nodes=NUM_NODES, num_blocks=20))
    assert judge(found, None, 1).broken == ()
    for member in (0, 3):  # another, and the selfish one
        winner = replace(found, proposers=(member,) * 20)
        assert judge(winner, None, 1).broken == ("share",)
    assert is_too_large(12_000, 60_000, 10_000.0)
    assert not is_too_large(10_200, 60_000, 10_000.0)


def test_the_laws_of_pace_and_entry_notice_what_breaks_them():
    found = play(Setting(seed=4, num_nodes=NUM_NODES, num_blocks=20))
    assert judge(found, MAX_SLOWDOWN + 0.01, 1).broken == ("pace",)
    assert judge(found, 1.0, None).broken == ("entry",)
    assert judge(replace(found, proposers=found.proposers[:19]), 1.0, 1).broken == ("pace",)


def test_the_command_tells_what_each_attack_won_and_writes_it_down(tmp_path):
    options = ["--networks", "2", "--blocks", "20", "--workers", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "withhold" in result.stdout
    assert "2 networks" in result.stdout
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "No law was broken." in page
    assert "| release | all together | 1 |" in page


@pytest.mark.campaign
def test_a_live_member_that_withholds_gains_nothing_and_is_removed_and_wins_most_without_the_rules():
    """One network of real processes for each: the rules make the difference."""
    changes = ("clients.samples=60", "learning.hidden=[8]", "learning.local_steps=4")
    guarded = run_live(0, 8, changes=changes)
    assert guarded.broken == ()
    unguarded = run_live(0, 8, kind=LiveKind.UNGUARDED, changes=changes)
    assert not unguarded.failures
    assert guarded.won < 6 <= unguarded.won
