"""The window into a node: what it shows, and to whom."""

import http.client
import json
import socket
from unittest.mock import patch

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bdfl.addresses import is_own_name
from bdfl.node.http import _MAX_REQUEST, MAX_CONNECTIONS, CannotListen, NodeMetrics, StatusServer, _BoundedRequest
from bdfl.node.status import WEDGED_S, LastBlock, ServiceState, Snapshot

LAST = LastBlock(
    height=7, digest="ab", proposer=2, attempt=1, age_s=1.0, round_s=0.5, is_empty=False, num_updates=3
)  # fmt: skip
SNAPSHOT = Snapshot(
    number=3, name="three", chain="c" * 64, version="0", pid=1, up_s=100.0, incarnation=2, height=7, last_height=None,
    phase="mining", attempt=1, is_training=False, is_mining=True, present=(0, 1), num_members=4,
    queues={"events": 5}, counters={"sent": 10, "received": 9}, refused={"signature": 4}, last_block=LAST,
    accuracy=0.9, deadline_s=2.0, memory_bytes=1000, num_threads=8, store_bytes=5000, training_s=3.0, mining_s=4.0,
    state=ServiceState.WORKING, reason="3 of 4 votes can be reached",
)  # fmt: skip


@pytest.fixture
def opened():
    metrics = NodeMetrics(lambda: SNAPSHOT)
    metrics.observe_round(0.3)
    window = StatusServer(metrics.pages)
    yield window
    window.close()


def ask(window, path, *, method="GET", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", window.port, timeout=120)
    try:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{window.port}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_metrics_are_what_prometheus_reads(opened):
    status, content = ask(opened, "/metrics")
    assert status == 200
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(content.decode())
        for sample in family.samples
    }
    assert samples["bdfl_height",] == 7
    assert samples["bdfl_phase", "mining"] == 1
    assert samples["bdfl_phase", "voting"] == 0
    assert samples["bdfl_peers",] == 2
    assert samples["bdfl_events_total", "sent"] == 10
    assert samples["bdfl_dropped_total", "signature"] == 4
    assert samples["bdfl_queue_length", "events"] == 5
    assert samples["bdfl_round_seconds_count",] == 1
    assert samples["bdfl_last_block_age_seconds",] == 1
    assert samples["bdfl_accuracy",] == 0.9
    states = {labels[0]: value for (name, *labels), value in samples.items() if name == "bdfl_node_state"}
    assert states == {state.value: float(state == "working") for state in ServiceState}
    for name in (
        "attempt",
        "training",
        "mining",
        "memory_bytes",
        "threads",
        "store_bytes",
        "quorum",
        "voters",
        "node_state_seconds",
        "up_seconds",
        "life",
    ):
        assert (f"bdfl_{name}",) in samples
    for name in ("training_seconds", "mining_seconds"):
        assert (f"bdfl_{name}_total",) in samples


def test_status_is_the_whole_snapshot(opened):
    status, content = ask(opened, "/status.json")
    assert status == 200
    assert msgspec.json.decode(content, type=Snapshot) == SNAPSHOT


def probe(found):
    metrics = NodeMetrics(lambda: found)
    return metrics.liveness().status, metrics.readiness().status


def test_a_node_at_work_is_alive_and_ready(opened):
    for path in ("/healthz", "/readyz"):
        status, content = ask(opened, path)
        assert (status, json.loads(content)["state"]) == (200, "working")


@pytest.mark.parametrize("state", ServiceState)
def test_a_node_is_ready_while_it_does_what_is_expected_and_alive_in_any_state(state):
    page = NodeMetrics(lambda: msgspec.structs.replace(SNAPSHOT, state=state, reason="so")).readiness()
    assert page.status == (200 if state in ("working", "catching-up", "finished") else 503)
    assert (json.loads(page.content)["state"], json.loads(page.content)["reason"]) == (state, "so")
    assert probe(msgspec.structs.replace(SNAPSHOT, state=state))[0] == 200


def test_an_event_loop_that_does_not_turn_is_not_alive():
    wedged = msgspec.structs.replace(SNAPSHOT, loop_s=WEDGED_S)
    assert probe(wedged)[0] == 503
    assert probe(msgspec.structs.replace(wedged, stage="gathering"))[0] == 200  # it has not begun


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "localhost.example.org:80", "10.0.0.1"])
def test_foreign_names_are_refused(opened, host):
    assert ask(opened, "/status.json", host=host)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "[::1]"])
def test_names_of_this_machine_are_served(opened, host):
    assert ask(opened, "/healthz", host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_nothing_but_get_is_answered(opened, method):
    assert ask(opened, "/metrics", method=method)[0] == 405


def test_what_is_not_there_is_not_found(opened):
    assert ask(opened, "/")[0] == 404
    assert ask(opened, "/../secret")[0] == 404


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [
        ("192.0.2.1:9100", "0.0.0.0", True),
        ("192.0.2.1", "0.0.0.0", True),
        ("[2001:db8::1]:9100", "::", True),
        ("example.org:9100", "0.0.0.0", False),  # a name may be anybody's
        ("192.0.2.1:9100", "127.0.0.1", False),
        ("localhost:9100", "127.0.0.1", True),
        ("localhost:9101", "127.0.0.1", False),
        ("", "127.0.0.1", False),
    ],
)
def test_a_window_open_everywhere_takes_addresses_and_no_names(name, host, expected):
    assert is_own_name(name, host, 9100) is expected


def test_connections_that_ask_nothing_do_not_pile_up(opened):
    silent = [socket.create_connection(("127.0.0.1", opened.port)) for _ in range(MAX_CONNECTIONS + 4)]
    try:
        for connection in silent[:4]:  # who waited longest is hung up on, whatever the others do
            connection.settimeout(60)
            assert connection.recv(1) == b""
    finally:
        for connection in silent:
            connection.close()


def test_connections_that_never_end_their_question_keep_nobody_out(opened):
    slow = [socket.create_connection(("127.0.0.1", opened.port)) for _ in range(MAX_CONNECTIONS)]
    try:
        for connection in slow:
            connection.sendall(b"GET /status.json HTTP/1.0\r\nX-A: ")
        for _ in range(2 * MAX_CONNECTIONS):
            assert ask(opened, "/status.json")[0] == 200
    finally:
        for connection in slow:
            connection.close()


def test_a_question_is_limited_as_a_whole_in_time_and_bytes():
    now = iter([0.0, 0.0, 4.0, 5.0])
    here, there = socket.socketpair()
    with here, there, patch("bdfl.node.http.monotonic", lambda: next(now)):
        question = _BoundedRequest(here)
        there.sendall(b"ab")
        assert question.read(1) == b"a"
        assert here.gettimeout() == 5.0
        assert question.read(1) == b"b"
        assert here.gettimeout() == 1.0  # what is left, not as much again
        with pytest.raises(TimeoutError):
            question.read(1)
    here, there = socket.socketpair()
    with here, there:
        question = _BoundedRequest(here)
        there.sendall(bytes(_MAX_REQUEST + 1))
        while question._left > 0:
            assert question.read(4096)
        with pytest.raises(TimeoutError):
            question.read(1)


def test_a_taken_port_is_said_in_one_line(opened):
    with pytest.raises(CannotListen, match="a free port expected"):
        StatusServer({}, port=opened.port)
