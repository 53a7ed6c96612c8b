"""Following a node's log: blocks and starts with their times, over rotations and torn lines."""

import json

import pytest

from bdfl.node.log import LOG_FILE, NUM_OLD_LOGS, NodeLog
from bdfl.storage import rotate
from campaigns.live_faults.log_reader import Diary, worst_gap_s


def write(folder, *lines):
    with (folder / LOG_FILE).open("ab") as file:
        file.writelines(json.dumps({"time": "2026-01-01T00:00:00.000Z", **line}).encode() + b"\n" for line in lines)


def block(clock, height):
    return {"clock": clock, "event": "block", "height": height, "digest": f"{height:016x}"}


def test_what_a_node_logs_is_read_as_it_grows(tmp_path):
    diary = Diary(tmp_path)
    assert diary.read().height == 0
    log = NodeLog(tmp_path / LOG_FILE)
    log.info("joining", {"height": 3, "life": 2})
    log.info("block", {"height": 4, "digest": "abc", "seconds": None})
    assert [(one.incarnation, one.height) for one in diary.read().joinings] == [(2, 3)]
    log.info("block", {"height": 5, "digest": "abd", "seconds": 1.5})
    assert [(one.height, one.digest) for one in diary.read().blocks] == [(4, "abc"), (5, "abd")]
    assert diary.height_at(diary.blocks[1].clock_s) == 5
    assert diary.height_at(0.0) == 0


def test_a_log_that_was_begun_anew_loses_nothing(tmp_path):
    diary = Diary(tmp_path)
    write(tmp_path, block(1, 1), block(2, 2))
    diary.read()
    write(tmp_path, block(3, 3))
    rotate(tmp_path / LOG_FILE, NUM_OLD_LOGS)
    write(tmp_path, block(4, 4))
    assert [one.height for one in diary.read().blocks] == [1, 2, 3, 4]


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    write(tmp_path, block(1, 1))
    with (tmp_path / LOG_FILE).open("ab") as file:
        file.write(b'{"time": "20')
    diary = Diary(tmp_path)
    assert diary.read().height == 1
    with (tmp_path / LOG_FILE).open("ab") as file:
        file.write(b"\n")
    write(tmp_path, block(2, 2))
    assert [one.height for one in diary.read().blocks] == [1, 2]


def test_gaps_are_those_that_the_interval_touches_and_the_last_is_open(tmp_path):
    write(tmp_path, block(0, 1), block(1, 2), block(4, 3), block(6, 4))
    diary = Diary(tmp_path).read()
    assert diary.gaps(2.0, 5.0) == [3.0, 2.0]
    assert diary.gaps(2.0, 10.0) == [3.0, 2.0, 4.0]
    assert worst_gap_s([diary], 5.5, 10.0) == pytest.approx(4.0)
    assert worst_gap_s([], 0.0, 1.0) == 0.0
