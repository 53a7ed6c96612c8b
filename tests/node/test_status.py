"""The state of a node for people: what it is by the facts, since when, and that everybody is told the same."""

import json
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from bdfl.cli import app
from bdfl.federation.genesis_draft import create_federation
from bdfl.federation.keys import create_key
from bdfl.ledger.sqlite_store import ChainStore
from bdfl.localnet.network import find_ports
from bdfl.node.log import NodeLog
from bdfl.node.monitor import NodeMonitor
from bdfl.node.run_file import RunFile, lock_folder, write_run
from bdfl.node.service import open_node
from bdfl.node.settings import NodeSettings, NotRunnable
from bdfl.node.status import (
    WEDGED_S,
    Absentee,
    ServiceState,
    Stage,
    StateTracker,
    judge_state,
    read_status,
    show_duration,
)
from bdfl.protocol.events import Commit, MessageArrived, Started
from bdfl.storage import write_record
from bdfl.transports.interfaces import Transition
from bdfl.transports.live.training_process import TrainingProcess
from tests.localnet.small_network import BY_FORMULA, FORMULA_CLIENT, found_single, tiny_scenario, wait_for
from tests.node.test_http import LAST, SNAPSHOT
from tests.node.test_service import running

SOUTH = Absentee(number=2, name="south", silent_s=12.0, is_connected=False)
SLOW = Absentee(number=1, name="member 1", silent_s=7200.0, is_connected=True)
LATE = msgspec.structs.replace(LAST, age_s=50.0)
WORKING = msgspec.structs.replace(
    SNAPSHOT, num_members=3, present=(0, 1), voters=(0, 1, 3), quorum=3, able_s=80.0, num_connections=2,
    peers=("192.0.2.7:7447",), listen=("0.0.0.0:7447",),
)  # fmt: skip
WAITING = msgspec.structs.replace(WORKING, present=(0,), voters=(0, 3), able_s=None, missing=(SOUTH,))


@pytest.mark.parametrize(
    ("base", "changes", "state", "reason"),
    [
        (WORKING, {}, "working", "3 of 3 votes can be reached"),
        (WORKING, {"num_scheduled": 0}, "working", "nobody is scheduled to train"),
        (WORKING, {"stage": Stage.PREPARING}, "starting", "loads its data"),
        (WORKING, {"stage": Stage.GATHERING, "missing": (SOUTH,)}, "starting", "waits a little for member 2 (south)"),
        (
            WAITING, {}, "waiting",
            "2 of 3 votes can be reached (members 0, 3), 3 needed; not heard: member 2 (south) for 12 s; "
            "need one more member, a listening address or an access point",
        ),
        (WAITING, {"stage": Stage.GATHERING}, "waiting", "need one more member"),
        (WAITING, {"last_block": LATE}, "waiting", "need one more member"),  # no block can come: that is no stall
        (
            WAITING, {"num_connections": 0, "present": (), "voters": (3,)}, "waiting",
            "1 of 3 votes can be reached (member 3), 3 needed; "
            "no connection to 192.0.2.7:7447: is it started, is the port open?",
        ),
        (WAITING, {"num_connections": 0, "peers": ()}, "waiting", "nobody has connected to 0.0.0.0:7447"),
        (WAITING, {"num_connections": 0, "peers": (), "listen": ()}, "waiting", "neither --peer nor --listen"),
        (WORKING, {"others_height": 8}, "working", ""),  # one block is usual
        (WORKING, {"others_height": 19}, "catching-up", "at block 7, 12 behind the others"),
        (WORKING, {"is_member": False}, "catching-up", "before its admission"),
        (WORKING, {"clock_offset_s": 59.0}, "working", ""),
        (WORKING, {"clock_offset_s": 86_400.0}, "misconfigured", "its clock is 24.0 h ahead of the other members'"),
        (WAITING, {"clock_offset_s": -3600.0}, "misconfigured", "its clock is 60 min behind the other members'"),
        (WORKING, {"has_twin": True}, "misconfigured", "another node runs as this member"),
        (
            WORKING, {"last_block": LATE, "missing": (SOUTH, SLOW), "attempt": 4}, "stalled",
            "no block for 50 s, at most 6 s expected; 3 of 3 votes can be reached (members 0, 1, 3), 3 needed; "
            "not heard: member 2 (south) for 12 s; connected but silent: member 1 for 2.0 h; attempt 4",
        ),
        (WORKING, {"last_block": LATE, "others_height": 19}, "stalled", "12 blocks behind the others"),
        (WORKING, {"last_block": LATE, "able_s": 5.0}, "working", ""),  # the quorum has only just come
        (WORKING, {"last_block": None}, "stalled", "no block for 80 s"),
        (WORKING, {"loop_s": WEDGED_S}, "stalled", "its event loop did not turn for 60 s: restart the node"),
        (WORKING, {"training_failure": "labels: 9 found"}, "not-training", "training failed: labels: 9 found"),
        (WORKING, {"training_failure": "why", "num_failures": 3}, "not-training", "failed 3 times in a row: why"),
        (WORKING, {"num_missed": 1}, "working", ""),
        (WORKING, {"num_missed": 4}, "not-training", "the last 4 times it was scheduled, its update did not come"),
        (WORKING, {"is_offender": True}, "not-training", "evidence against this member"),
        (WAITING, {"end": "block 7, the last, is decided"}, "finished", "block 7, the last, is decided"),
        (WORKING, {"end": "member 3 was removed", "is_removed": True}, "removed", "member 3 was removed"),
        (WORKING, {"stage": Stage.ENDING, "end": "chain: No space left"}, "stopped", "chain: No space left"),
        (WORKING, {"stage": Stage.ENDING}, "stopped", "asked to stop"),
    ],
)  # fmt: skip
def test_each_state_follows_from_the_facts(base, changes, state, reason):
    found, why = judge_state(msgspec.structs.replace(base, **changes))
    assert (found.value, reason in why) == (state, True), why
    assert len(why) <= 300  # a log keeps all of it


def test_only_states_that_need_nobody_are_well_and_only_those_at_work_are_ready():
    assert {state.value for state in ServiceState if state.is_well} == {
        "starting", "working", "catching-up", "finished"
    }  # fmt: skip
    assert {state.value for state in ServiceState if state.is_ready} == {"working", "catching-up", "finished"}


def test_a_state_is_told_when_it_changes_and_waiting_also_when_others_are_missing():
    told = []
    track = StateTracker(lambda found: told.append((found.state.value, found.voters)))
    gathering = msgspec.structs.replace(WORKING, stage=Stage.GATHERING)
    assert track.judge(gathering, 0.0).able_s == track.judge(gathering, 9.0).able_s == 0.0  # no round has begun
    told.clear()
    assert track.judge(WAITING, 10.0).since_s == 0.0
    assert track.judge(WAITING, 15.0).since_s == 5.0
    assert track.judge(msgspec.structs.replace(WAITING, voters=(1, 3)), 16.0).since_s == 6.0
    late = msgspec.structs.replace(WORKING, last_block=LATE)
    assert track.judge(late, 20.0).state is ServiceState.WORKING  # a quorum is there only now
    assert track.judge(late, 25.0).able_s == 5.0
    assert track.judge(late, 27.0).state is ServiceState.STALLED
    assert track.judge(WORKING, 28.0).state is ServiceState.WORKING
    assert track.judge(WORKING, 30.0).since_s == 2.0
    assert told == [
        ("waiting", (0, 3)), ("waiting", (1, 3)), ("working", (0, 1, 3)), ("stalled", (0, 1, 3)),
        ("working", (0, 1, 3)),
    ]  # fmt: skip


def test_who_is_behind_catches_up_without_a_quorum_as_long_as_anybody_is_there():
    track = StateTracker(lambda found: None)
    behind = msgspec.structs.replace(WAITING, others_height=19, last_block=LATE)
    assert track.judge(behind, 0.0).state is ServiceState.CATCHING_UP
    assert track.judge(behind, 60.0).state is ServiceState.STALLED
    assert track.judge(msgspec.structs.replace(behind, present=()), 61.0).state is ServiceState.WAITING


@pytest.mark.parametrize(
    ("seconds", "said"), [(float("nan"), "?"), (0.4, "0 s"), (89.0, "89 s"), (720.0, "12 min"), (12600.0, "3.5 h")]
)
def test_durations_are_for_people(seconds, said):
    assert show_duration(seconds) == said


# One moment


def state_at(height):
    return SimpleNamespace(chain=SimpleNamespace(height=height))


def test_height_blocks_and_commits_are_of_one_moment_while_blocks_are_decided():
    watch = NodeMonitor(NodeLog(None))
    watch.begin(state_at(0), None)
    seen = []
    is_over = threading.Event()

    def look():
        while not is_over.is_set():
            seen.append(watch.moment)

    looking = threading.Thread(target=look)
    looking.start()
    for height in range(1, 3000):
        block = SimpleNamespace(header=SimpleNamespace(height=height))
        watch.stepped(height, Transition(state_at(height - 1), Started(), state_at(height), (Commit(block, ()),)))
    is_over.set()
    looking.join()
    seen.append(watch.moment)
    for moment in seen:
        height = 0 if moment.block is None else moment.block.header.height
        assert moment.state.chain.height == moment.num_commits == height


def test_a_block_that_is_not_yet_on_the_disk_counts_everywhere_or_nowhere(tmp_path, monkeypatch):
    settings = replace(found_single(tmp_path, BY_FORMULA), allowed=frozenset([FORMULA_CLIENT]))
    is_let, append = threading.Event(), ChainStore.append

    def append_later(self, block, certificate, *, is_trusted):
        assert is_let.wait(300)
        append(self, block, certificate, is_trusted=is_trusted)

    monkeypatch.setattr(ChainStore, "append", append_later)
    with open_node(settings) as service, running(service):
        found = wait_for(lambda: (now := service.snapshot()).height and now, "a block that is decided")
        is_let.set()
        assert found.counters["commits"] == found.last_block.height == found.height


def test_heights_of_others_count_once_more_claim_them_than_may_lie():
    watch = NodeMonitor(NodeLog(None))
    watch.begin(state_at(0), None)

    def hear(sender, height, now_ns):
        message = SimpleNamespace(sender=sender, height=height)
        watch.stepped(now_ns, Transition(state_at(0), MessageArrived(message), state_at(0), ()))

    assert watch.claimed_height([1, 2, 3], 1) == 0
    hear(1, 10**9, 5 * 10**9)
    assert watch.claimed_height([1, 2, 3], 1) == 0
    hear(2, 41, 7 * 10**9)
    hear(9, 10**9, 7 * 10**9)  # no member
    assert watch.claimed_height([1, 2, 3], 1) == 40
    assert watch.claimed_height([2], 0) == 40
    assert watch.silences([1, 2, 3], 8 * 10**9, 2 * 10**9) == {1: 3.0, 2: 1.0, 3: 6.0}


# Live, on loopback


def found_members(tmp_path, count):
    """Settings of so few members that all of their votes are needed; each but the first knows the first alone."""
    signers = [create_key(tmp_path / f"{number}.pem") for number in range(count)]
    scenario = tiny_scenario(count, BY_FORMULA, 'ledger.quorum="bft"')
    write_record(tmp_path / "genesis.bdfl", create_federation(scenario, signers))
    ports = find_ports(count)
    return [
        NodeSettings(
            genesis=tmp_path / "genesis.bdfl", key=tmp_path / f"{number}.pem", folder=tmp_path / f"node-{number}",
            listen=(ports[number],), peers=tuple(ports[:1] if number else ()), allowed=frozenset([FORMULA_CLIENT]),
        )
        for number in range(count)
    ]  # fmt: skip


def ask(folder, path):
    address = json.loads((folder / "run.json").read_text())["metrics"]
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def status_of(folder, *options):
    return CliRunner().invoke(app, ["node", "status", str(folder), *options])


def test_nodes_without_a_quorum_say_so_before_the_first_round_and_are_not_healthy(tmp_path):
    first, second, _ = found_members(tmp_path, 3)
    address = first.listen[0]
    with open_node(second) as alone, running(alone):
        reason = f"1 of 3 votes can be reached (member 1), 3 needed; no connection to {address}"
        wait_for(lambda: alone.snapshot().reason.startswith(reason), "a wait for whom it cannot reach")
        with open_node(first) as service, running(service):
            reason = "2 of 3 votes can be reached (members 0, 1), 3 needed; not heard: member 2 for "
            for node in (service, alone):
                wait_for(lambda node=node: node.snapshot().reason.startswith(reason), "a wait for the third")
            status, said = ask(first.folder, "/readyz")
            assert (status, said["state"]) == (503, "waiting")
            assert said["reason"].endswith("need one more member, a listening address or an access point")
            assert ask(first.folder, "/healthz")[0] == 200  # a restart would not help
            shown = status_of(first.folder)
            assert shown.exit_code == 1
            assert shown.stdout.startswith("waiting for ")
            assert "member 2" in shown.stdout
            document = json.loads(status_of(first.folder, "--json").stdout)
            assert (document["state"], document["snapshot"]["quorum"]) == ("waiting", 3)
    lines = [json.loads(line) for line in (first.folder / "node.log").read_text().splitlines()]
    states = [(line["level"], line["now"]) for line in lines if line["event"] == "state"]
    assert states[0] == ("info", "starting")
    assert set(states[1:]) == {("warning", "waiting")}


def test_a_finished_node_stays_ready_and_says_how_to_look_at_its_chain(tmp_path):
    settings = found_single(tmp_path, BY_FORMULA)
    settings = replace(settings, allowed=frozenset([FORMULA_CLIENT]), last_height=2)
    with open_node(settings) as service, running(service):
        wait_for(lambda: service.snapshot().state is ServiceState.FINISHED, "the end of the chain")
        assert ask(settings.folder, "/readyz")[0] == 200
        shown = status_of(settings.folder)
        assert shown.exit_code == 0
        assert shown.stdout.startswith("finished for ")
        assert f"bdfl explore {settings.folder}" in shown.stdout
        assert f"bdfl chain verify {settings.folder}" in shown.stdout
        wait_for(lambda: f"bdfl explore {settings.folder}" in (settings.folder / "node.log").read_text(), "a line")
    view = read_status(settings.folder)
    assert (view.state, view.reason) == (ServiceState.STOPPED, "asked to stop")
    assert view.since_s is not None


def test_training_that_fails_is_named_by_a_node_that_still_votes(tmp_path, monkeypatch):
    train = TrainingProcess.train

    def train_nothing(self, model, round, on_done, rounds_before=()):
        train(self, b"no model", round, on_done, rounds_before)

    monkeypatch.setattr(TrainingProcess, "train", train_nothing)
    first, second = found_members(tmp_path, 2)
    with open_node(first) as one, open_node(second) as other, running(one), running(other):
        wait_for(lambda: one.snapshot().state is ServiceState.NOT_TRAINING, "a failure")
        found = wait_for(lambda: (now := one.snapshot()).height >= 2 and now, "blocks without updates")
        assert found.state is ServiceState.NOT_TRAINING
        assert found.reason.startswith("training failed")
        assert status_of(first.folder).exit_code == 1


# Nobody answers


def test_a_folder_tells_why_its_node_does_not_run(tmp_path):
    settings = replace(found_single(tmp_path), data=str(tmp_path / "none.npz"))
    with pytest.raises(NotRunnable), open_node(settings) as service:
        service.run()
    view = read_status(settings.folder)
    assert view.state is ServiceState.STOPPED
    assert "none.npz" in view.reason


def test_a_node_that_was_killed_and_one_that_does_not_answer_are_not_well(tmp_path):
    run = RunFile(kind="node", pid=1, started=0.0, version="0", chain="", number=0)
    write_run(tmp_path, run)
    assert read_status(tmp_path).state is ServiceState.STOPPED
    assert "killed" in read_status(tmp_path).reason
    with lock_folder(tmp_path):
        assert read_status(tmp_path).state is None
        assert "status page is off" in read_status(tmp_path).reason
        write_run(tmp_path, msgspec.structs.replace(run, metrics=find_ports(1)[0]))
        assert read_status(tmp_path).state is None
        shown = status_of(tmp_path)
        assert (shown.exit_code, shown.stdout.split(":")[0]) == (1, "unknown")
