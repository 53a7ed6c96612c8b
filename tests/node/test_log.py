"""What a node writes down: whole JSON lines, in bounded files, and nothing that is secret or long."""

import io
import json

from bdfl.node.log import NUM_OLD_LOGS, NodeLog
from bdfl.storage import rotate


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_one_json_document_with_time_level_event_and_facts(tmp_path):
    NodeLog(tmp_path / "node.log").info("block", {"height": 3, "proposer": 1, "is_empty": False})
    [line] = lines_of(tmp_path / "node.log")
    assert (line["level"], line["event"], line["height"], line["is_empty"]) == ("info", "block", 3, False)
    assert line["time"].endswith("Z")


def test_people_read_one_short_line():
    echo = io.StringIO()
    log = NodeLog(None, echo=echo, name="node 3")
    log.warn("late\nand long", {"why": "x" * 1000})
    said = echo.getvalue()
    assert said.startswith("node 3: warning: late and long (why xxx")
    assert said.count("\n") == 1
    assert len(said) < 400


def test_files_stay_bounded_and_the_newest_lines_stay(tmp_path):
    log = NodeLog(tmp_path / "node.log", max_bytes=1000)
    for number in range(200):
        log.info("event", {"number": number})
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["node.log", "node.log.1", "node.log.2", "node.log.3"]
    assert all(file.stat().st_size <= 1000 for file in files)
    numbers = [line["number"] for file in (files[3], files[2], files[1], files[0]) for line in lines_of(file)]
    assert numbers == list(range(numbers[0], 200))


def test_a_disk_that_takes_nothing_does_not_stop_the_node(tmp_path):
    log = NodeLog(tmp_path / "no folder" / "node.log")
    log.error("anything")
    assert log.num_lost == 1


def test_somebody_who_stops_reading_does_not_stop_the_node(tmp_path):
    echo = io.StringIO()
    echo.close()
    log = NodeLog(tmp_path / "node.log", echo=echo)
    log.info("first")
    log.info("second")
    assert len(lines_of(tmp_path / "node.log")) == 2


def test_rotating_what_is_not_there_changes_nothing(tmp_path):
    rotate(tmp_path / "node.log", NUM_OLD_LOGS)
    assert list(tmp_path.iterdir()) == []
