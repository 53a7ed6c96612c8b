"""What p2pfl's run is told to have come to; p2pfl itself is not needed."""

import math

import pytest

from benchmarks.learning.sides import Side
from benchmarks.live import p2pfl_rounds
from benchmarks.live.p2pfl_rounds import P2pflResult, P2pflRound, run_p2pfl, tell_failure
from benchmarks.live.p2pfl_side import Diary, tell_rounds

WHOLE = P2pflRound(seconds=10.0, nodes=8, least_neighbours=7, missing_updates=0)


class Aggregator:
    def get_missing_models(self) -> set[str]:
        return {"late"}


class Node:
    aggregator = Aggregator()

    def get_neighbors(self) -> dict[str, object]:
        return {"a": 1, "b": 2}


def diary_of(*stages: str) -> Diary:
    diary = Diary(Node())
    for stage in stages:
        diary.append(stage)
    return diary


def test_a_round_ends_with_its_last_node_and_says_who_was_there():
    whole = ("VoteTrainSetStage", "TrainStage", "GossipModelStage", "RoundFinishedStage")
    first = diary_of("StartLearningStage", *whole, *whole)
    second = diary_of("StartLearningStage", *whole, "VoteTrainSetStage")
    rounds = tell_rounds([first, second], 3)
    assert [round["nodes"] for round in rounds] == [2, 1]
    assert [round["least_neighbours"] for round in rounds] == [2, 2]
    assert [round["missing_updates"] for round in rounds] == [1, 1]
    assert rounds[0]["seconds"] == max(first.ended_s[0], second.ended_s[0]) - min(first.began_s[0], second.began_s[0])
    assert second[-1] == "VoteTrainSetStage"


def test_nobody_having_begun_is_no_round():
    assert tell_rounds([diary_of(), diary_of("StartLearningStage")], 2) == []


def test_the_median_is_over_whole_rounds():
    late = P2pflRound(seconds=60.0, nodes=5, least_neighbours=4, missing_updates=0)
    result = P2pflResult(8, 3, (WHOLE, P2pflRound(20.0, 8, 7, 0), late), (), "", "")
    assert result.round_s == 15.0
    assert math.isnan(P2pflResult(8, 3, (late,), (), "", "").round_s)


@pytest.mark.parametrize(
    ("rounds", "stuck_in", "told"),
    [
        ((WHOLE, WHOLE), [""] * 8, ""),
        (
            (WHOLE, P2pflRound(70.0, 6, 5, 2)),
            ["", "TrainStage"],
            "round 2 was ended by 6 of 8 nodes; after round 2 a node knew 5 of 7 others; "
            "in round 2 a node went on without 2 updates; 1 nodes did not come to an end, last in TrainStage",
        ),
        ((WHOLE,), [""] * 8, "1 of 2 rounds were ended by anybody"),
    ],
)
def test_a_network_that_fell_apart_says_where(rounds, stuck_in, told):
    assert tell_failure(8, 2, rounds, stuck_in) == told


def test_what_is_not_installed_is_told_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr(Side, "is_installed", property(lambda side: False))
    assert run_p2pfl(num_rounds=1).failure == f"not installed: {p2pfl_rounds.INSTALL}"
