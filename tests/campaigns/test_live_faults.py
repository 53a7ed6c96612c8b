"""Real processes in trouble, at a small count (`make live-faults` is the campaign); and that the laws bite."""

import dataclasses
import io
import shutil
import sqlite3

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from bdfl.ledger.block import Kind
from bdfl.localnet.processes import node_folder
from bdfl.protocol.events import MessageArrived
from bdfl.protocol.messages import Gossip
from bdfl.scenario import QuorumRule
from bdfl.transports.live.event_log import EVENTS_FILE, EventLog, LoggedStep, LogHeader, read_entries
from campaigns.live_faults import access_points, campaign as campaign_module, kills, stops
from campaigns.live_faults.__main__ import app
from campaigns.live_faults.access_points import NUM_ACCESS_POINTS, play_access_points
from campaigns.live_faults.campaign import GRACE_S, Amounts, LiveCampaign, plan_trials, try_network
from campaigns.live_faults.clocks import BACK, play_clocks
from campaigns.live_faults.disks import play_disks
from campaigns.live_faults.event_history import find_contradictions, find_forgotten, read_testimony
from campaigns.live_faults.failing_store import FaultKind
from campaigns.live_faults.harness import STORY_FILE, Left, NotInTime, Setting, open_arena
from campaigns.live_faults.invariants import judge_aftermath
from campaigns.live_faults.kills import play_kills
from campaigns.live_faults.results import Figures, LiveBreach, LiveOutcome, TroubleKind, judge_gap
from campaigns.live_faults.slow_line import open_lines
from campaigns.live_faults.stops import play_dead, play_stop
from campaigns.live_faults.tables import live_campaign_markdown, tabulate_live_campaign
from tests.localnet.small_network import BY_FORMULA, PATIENCE_S, TINY

SEED = 4  # the first new start of its kills is armed
SETTING = Setting(seed=SEED, num_nodes=4, changes=(*TINY, BY_FORMULA, "live.time_scale=1"), patience_s=PATIENCE_S)
TIMING = {"late", "deadline"}  # laws about how long something took: not for machines that do much else


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """A network of four nodes behind two access points after one trouble after the other, and what was measured."""
    folder = tmp_path_factory.mktemp("tried") / "network"
    with (
        pytest.MonkeyPatch.context() as shorter,
        open_arena(folder, SETTING, num_access_points=NUM_ACCESS_POINTS) as arena,
    ):
        shorter.setattr(kills, "_LONGEST_WAIT_S", 1.0)
        shorter.setattr(kills, "_LONGEST_ABSENCE_S", 1.0)
        shorter.setattr(access_points, "_NONE_S", 1.0)
        shorter.setattr(stops, "_CALM_BLOCKS", 2)
        figures = {
            TroubleKind.KILL: play_kills(arena, 2),
            TroubleKind.STOP: play_stop(arena, 2.0),
            TroubleKind.ACCESS_POINT: play_access_points(arena),
            TroubleKind.DISK: play_disks(arena, [FaultKind.FULL]),
            TroubleKind.CLOCK: play_clocks(arena, 1, [dataclasses.replace(BACK, after_s=2.0)]),
            TroubleKind.DEAD: play_dead(arena, 2),
        }
        assert arena.network.stop(GRACE_S) == []
    return arena, figures


@pytest.fixture
def altered(tried, tmp_path):
    """A copy of what it left, to be spoiled."""
    return shutil.copytree(tried[0].folder, tmp_path / "network")


@pytest.mark.campaign
@pytest.mark.parametrize("kind", [kind for kind in TroubleKind if kind is not TroubleKind.SLOW])
def test_no_law_is_broken_by(tried, kind):
    figures = tried[1][kind]
    assert [breach for breach in figures.breaches if breach.law not in TIMING] == []
    assert figures.num_trials >= 1


@pytest.mark.campaign
def test_a_node_was_killed_while_it_wrote(tried):
    assert tried[1][TroubleKind.KILL].num_during_writes == 1
    assert "was killed while it wrote" in (tried[0].folder / STORY_FILE).read_text()


@pytest.mark.campaign
def test_chains_are_one_and_valid_and_nobody_contradicted_itself_or_forgot_anything(tried):
    arena = tried[0]
    breaches, returns = judge_aftermath(arena.folder, arena.began_s, arena.left)
    assert len(arena.left) == 3
    assert [breach for breach in breaches if breach.law not in TIMING] == []
    assert len(returns) >= 4
    assert any(one.rounds is not None and one.seconds is not None for one in returns)


@pytest.mark.campaign
def test_the_others_gap_is_measured_beside_the_deadline(tried):
    for kind in (TroubleKind.STOP, TroubleKind.DEAD, TroubleKind.DISK):
        figures = tried[1][kind]
        assert figures.gap_s > 0
        assert figures.deadline_s > 2 + 1.5 * 0.8


def add_to_log(folder, number, entries):
    """Writes entries at the end of a node's log."""
    log = EventLog(node_folder(folder, number) / EVENTS_FILE)
    for entry in entries:
        if isinstance(entry, LogHeader):
            log.begin(entry)
        else:
            log.append(entry.now_ns, entry.utc_ms, entry.event, entry.signatures)
    log.close()


def some_vote(folder, number):
    """A message with a vote of somebody, as a node wrote it down."""
    for entry in read_entries(node_folder(folder, number) / EVENTS_FILE):
        if isinstance(entry, LoggedStep) and isinstance(entry.event, MessageArrived):
            content = entry.event.message.content
            if isinstance(content, Gossip) and content.votes:
                return entry
    raise AssertionError("no vote")


@pytest.mark.campaign
def test_two_votes_of_one_attempt_are_noticed(altered):
    entry = some_vote(altered, 0)
    message = entry.event.message
    [vote, *_] = message.content.votes
    other = msgspec.structs.replace(vote, vote=msgspec.structs.replace(vote.vote, block=bytes(32)))
    gossip = msgspec.structs.replace(message.content, votes=(other,))
    add_to_log(
        altered,
        1,
        [msgspec.structs.replace(entry, event=MessageArrived(msgspec.structs.replace(message, content=gossip)))],
    )
    [what] = find_contradictions(read_testimony(altered, range(4)))
    assert what.startswith(f"member {vote.vote.voter} cast 2 different {Kind(vote.vote.kind).value}s")


@pytest.mark.campaign
def test_a_vote_and_a_block_that_were_forgotten_are_noticed(altered):
    path = node_folder(altered, 1) / EVENTS_FILE
    entries = list(read_entries(path))
    began = next(entry for entry in entries if isinstance(entry, LogHeader))
    last_ns = max(entry.now_ns for entry in entries if isinstance(entry, LoggedStep))
    started = next(entry for entry in entries if isinstance(entry, LoggedStep))
    add_to_log(altered, 1, [began, msgspec.structs.replace(started, now_ns=last_ns + 10**9)])
    found = find_forgotten(read_testimony(altered, range(4)))
    assert any(what.startswith("node 1 had shown block") for what in found)
    assert any("without its prevote" in what for what in found)
    assert any("without its precommit" in what for what in found)


@pytest.mark.campaign
def test_chains_that_lost_a_block_or_all_are_noticed(altered):
    path = node_folder(altered, 2) / "chain" / "chain.sqlite"
    with sqlite3.connect(path) as database:
        [(height,)] = database.execute("SELECT max(height) FROM blocks").fetchall()
        database.execute("DELETE FROM blocks WHERE height = ?", (height,))
    database.close()
    (node_folder(altered, 3) / "chain" / "chain.sqlite").write_bytes(b"no chain")
    breaches, _ = judge_aftermath(altered, left=[Left(2, height, b"another", 1.0)])
    whats = [breach.what for breach in breaches if breach.law == "memory"]
    assert [what.startswith(f"node 2 had block {height}") for what in whats] == [True, True]
    assert "on its disk when it ended" in whats[1]
    assert [breach.what[:7] for breach in breaches if breach.law == "store"] == ["node 3:"]


def test_a_gap_may_be_a_calm_one_and_the_deadline():
    assert judge_gap(7.9, 1.0, 7.0) == ()
    [breach] = judge_gap(8.1, 1.0, 7.0)
    assert str(breach) == "deadline: 8.1 s without a block, at most 1.0 + 7.0 s expected"


def test_every_other_node_is_behind_a_line_of_its_own():
    with open_lines(0) as (route, relays):
        points = ["127.0.0.1:1"]
        assert route(0, points) == points
        far = [route(number, points) for number in (1, 3)]
        assert len(relays) == 2
        assert far == [[f"127.0.0.1:{relay.address[1]}"] for relay in relays]


def test_many_kills_are_shared_by_several_networks_and_the_dead_are_tried_under_both_rules():
    trials = plan_trials(list(TroubleKind), Setting(seed=5), None, Amounts(kills=60))
    kills = [trial for trial in trials if trial.kind is TroubleKind.KILL]
    assert [trial.amounts.kills for trial in kills] == [25, 25, 10]
    assert [trial.setting.seed for trial in kills] == [5, 6, 7]
    dead = [trial.setting for trial in trials if trial.kind is TroubleKind.DEAD]
    assert {setting.quorum: setting.num_spare for setting in dead} == {QuorumRule.MAJORITY: 3, QuorumRule.BFT: 2}
    assert kills[1].command == "python -m campaigns live_faults --only kill --kills 25 --nodes 8 --quorum bft --seed 6"
    [only] = plan_trials([TroubleKind.DEAD], Setting(), QuorumRule.MAJORITY, Amounts())
    assert only.setting.quorum is QuorumRule.MAJORITY


def make_outcome(kind=TroubleKind.STOP, **changes):
    facts = {
        "kind": kind, "seed": 4, "num_nodes": 8, "quorum": QuorumRule.BFT, "seconds": 80.0, "height": 30,
        "figures": Figures(num_trials=1, gap_s=5.0, calm_gap_s=1.0, deadline_s=8.0, block_s=2.0, note="30 s"),
        "num_returns": 1, "return_rounds": 1, "return_s": 2.5, "folder": "there", "breaches": (),
    }  # fmt: skip
    return LiveOutcome(**{**facts, **changes})


def test_the_table_fits_a_terminal_and_the_page_tells_all():
    breach = LiveBreach(law="memory", what="node 3 forgot", moment_s=12.25)
    wide = make_outcome(
        TroubleKind.ACCESS_POINT, quorum=QuorumRule.MAJORITY, height=1234, return_s=12.3, seconds=9999.0
    )
    campaign = LiveCampaign(outcomes=(make_outcome(), make_outcome(TroubleKind.KILL, breaches=(breach,)), wide))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(tabulate_live_campaign(campaign))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    page = live_campaign_markdown(campaign, "python -m campaigns live_faults", "Python")
    assert "| stop | bft | 8 | 1 | 30 | 5.0 | 9.0 | 1 | 2.5 | 80 | 0 |" in page
    assert "memory: node 3 forgot (at 12.2 s)" in page
    assert "3 networks, 1 of them broke a law" in page


def test_a_network_that_makes_no_block_in_time_broke_a_law(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise NotInTime("block 3 at nodes 0, 1: not within 1 s")

    monkeypatch.setattr(campaign_module, "open_arena", refuse)
    [trial] = plan_trials([TroubleKind.STOP], SETTING, None, Amounts())
    outcome = try_network(trial, tmp_path / "network")
    assert [breach.law for breach in outcome.breaches] == ["progress"]


def test_the_command_says_what_broke_and_where_all_logs_are(tmp_path, monkeypatch):
    breach = LiveBreach(law="memory", what="node 3 forgot", moment_s=12.5)
    outcome = make_outcome(breaches=(breach,), folder=str(tmp_path / "logs"))
    monkeypatch.setattr(campaign_module, "try_network", lambda trial, folder: outcome)
    options = ["--only", "stop", "--seed", "4", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*options])
    assert result.exit_code == 1
    assert "stop, seed 4: memory: node 3 forgot (at 12.5 s)" in result.output
    assert f"all logs: {tmp_path / 'logs'}" in result.output
    assert "again: python -m campaigns live_faults --only stop --nodes 8 --quorum bft --seed 4" in result.output
    assert "broke a law" in (tmp_path / "out" / "README.md").read_text()
    data = msgspec.json.decode((tmp_path / "out" / "faults.json").read_bytes())
    assert data["outcomes"][0]["breaches"][0]["law"] == "memory"


def test_the_command_ends_well_where_all_laws_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign_module, "try_network", lambda trial, folder: make_outcome(trial.kind))
    result = CliRunner().invoke(app, ["--json", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0
    kinds = [outcome["kind"] for outcome in msgspec.json.decode(result.stdout)["outcomes"]]
    assert set(kinds) == set(TroubleKind)
