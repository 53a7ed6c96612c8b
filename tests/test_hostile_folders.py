"""A small sample of the campaign of hostile folders: every kind of corruption, and the kinds that once did harm."""

import random
from pathlib import Path

import pytest

from campaigns.hostile_folders.__main__ import make_whole, open_folders
from campaigns.hostile_folders.corruptions import CORRUPTIONS
from campaigns.hostile_folders.judging import fingerprint
from campaigns.hostile_folders.kinds import KINDS, make_hostile
from campaigns.hostile_folders.worker import judge_case


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing is wrong with."""
    return make_whole(tmp_path_factory.mktemp("whole"))


def test_random_corruptions_are_found_or_change_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("campaigns.hostile_folders.worker._limit_time", lambda seconds: None)
    monkeypatch.setattr("campaigns.hostile_folders.worker.MAX_MEMORY", 2**40)  # this process has done other things
    expected = fingerprint(whole / "chain")
    cases = [judge_case(number, 20, whole, tmp_path, expected) for number in range(2 * len(CORRUPTIONS))]
    assert {case["kind"] for case in cases} == set(CORRUPTIONS)
    assert [case for case in cases if case["faults"]] == []


@pytest.mark.parametrize(
    "kind", ["pipe as blob", "endless view", "control characters in names", "functions in the scenario", "cut chain"]
)
def test_hostile_folders_end_in_a_line(whole: Path, tmp_path: Path, kind: str) -> None:
    [case] = open_folders(1, 0, whole, tmp_path, kind, num_commands=1)
    assert case["kind"] == kind
    # The command begins as a copy of this process, which may have grown by then: memory is for the campaign to judge.
    assert [fault for fault in case["faults"] if "of memory" not in fault] == []


def test_every_kind_can_be_made(whole: Path, tmp_path: Path) -> None:
    large = ("Parquet of 40 million equal rows", "Parquet that unpacks to 1 GB")
    for number, kind in enumerate(one for one in KINDS if one not in large):
        (target := tmp_path / str(number)).mkdir()
        assert make_hostile(kind, random.Random(number), whole, target).is_dir()
