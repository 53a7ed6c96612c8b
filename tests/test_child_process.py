"""A supervised child answers, is given up in time, sends nothing that is too long, and dies with its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from bdfl.processes import BrokenMessage, Channel, ChildEnded, ChildProcess

PATIENCE_S = 240.0
BYTES = msgspec.msgpack.Decoder(bytes)
_ECHO = "import msgspec; from bdfl.processes import serve_requests; "
_ECHO += "serve_requests(msgspec.msgpack.Decoder(bytes), lambda data: data[::-1])"
_DEAF = "import time; time.sleep(600)"


def test_a_request_is_answered_however_large_it_is() -> None:
    child = ChildProcess("-c", _ECHO)
    child.wait_ready(PATIENCE_S)
    large = os.urandom(2**22)
    assert child.request(b"ab", BYTES, PATIENCE_S) == b"ba"
    assert child.request(large, BYTES, PATIENCE_S) == large[::-1]
    os.kill(child.pid, signal.SIGINT)  # Ctrl-C is for the parent
    assert child.request(b"ab", BYTES, PATIENCE_S) == b"ba"
    child.end()
    assert child._process.returncode == 0
    with pytest.raises(ChildEnded):
        child.request(b"ab", BYTES, PATIENCE_S)
    child.close()


def test_a_child_that_does_not_answer_is_given_up_and_killed() -> None:
    child = ChildProcess("-c", _DEAF)
    with pytest.raises(TimeoutError):
        child.request(b"ab", BYTES, 0.01)
    for _ in range(10):
        child.post(bytes(2**20))  # nobody reads: sending them would block
    child.end(0.01)
    assert child._process.returncode == -signal.SIGKILL
    assert list(child.listen(BYTES)) == []


def test_messages_that_are_too_long_or_of_another_form_are_refused() -> None:
    reading, writing = os.pipe()
    channel = Channel(reading, writing, max_bytes=100)
    channel.send("text")
    with pytest.raises(BrokenMessage, match="bytes"):
        channel.receive(BYTES)
    channel.send(bytes(100))
    with pytest.raises(BrokenMessage, match="at most 100 expected"):
        channel.receive(BYTES)
    for end in (reading, writing):
        os.close(end)


def test_a_message_cut_short_is_the_end() -> None:
    for size in (0, 5, 9):
        reading, writing = os.pipe()
        os.write(writing, ((4).to_bytes(8, "big") + b"\xc4\x02ab")[:size])
        os.close(writing)
        assert Channel(reading, reading).receive(BYTES, PATIENCE_S) is None
        os.close(reading)


_SLOW = "import time; " + _ECHO.replace("data[::-1]", "time.sleep(600)")
_OWNER = f"""
import time
from bdfl.processes import ChildProcess
child = ChildProcess("-c", {_SLOW!r})
child.wait_ready({PATIENCE_S})
child.send(b"")
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_child_dies_with_its_parent_also_in_the_middle_of_an_answer() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        state = Path(f"/proc/{int(owner.stdout.readline())}/stat")
        assert state.exists()
        owner.kill()
    deadline_s = time.monotonic() + PATIENCE_S
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
