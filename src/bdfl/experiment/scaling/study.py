"""The numbers behind the figures of `docs/scale.md`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bdfl.arrays import PerClient
from bdfl.compute import training_time
from bdfl.environment import draw_federation, draw_rounds
from bdfl.experiment.scaling.committees import least_committee
from bdfl.experiment.scaling.traffic import heard_in_round
from bdfl.experiment.scaling.trees import exchange_all, exchange_tree
from bdfl.radio import uplink_rate
from bdfl.scenario import Scenario
from bdfl.scenario.ledger import QuorumRule


@dataclass(frozen=True)
class CommitteePoint:
    """Required size of a committee."""

    members: int
    liar_share: float
    rule: QuorumRule
    risk: float
    size: int | None  # None: no size is safe


@dataclass(frozen=True)
class TrafficPoint:
    """Traffic received by a member in a round, if all vote and if a committee does."""

    members: int
    committee: int
    all_bytes: int
    committee_bytes: int
    all_signatures: int
    committee_signatures: int


@dataclass(frozen=True)
class ExchangePoint:
    """Time from the start of training until all members have the global model; fan-out 0: all to all."""

    members: int
    fan_out: int
    delay_s: float
    most_received_mb: float
    most_held_mb: float


def study_committees(
    sizes: Sequence[int], shares: Sequence[float], risk: float, rule: QuorumRule
) -> list[CommitteePoint]:
    """Least committee for every number of members and share of Byzantine ones, rounded down to whole members."""
    return [
        CommitteePoint(members, share, rule, risk, least_committee(members, int(share * members), risk, rule))
        for members in sizes
        for share in shares
    ]


def study_traffic(
    sizes: Sequence[int], selected: int, model_bytes: int, liar_share: float, risk: float
) -> list[TrafficPoint]:
    """Traffic received by a member if all vote, and if a committee of the least safe size does."""
    points = []
    for members in sizes:
        size = least_committee(members, int(liar_share * members), risk, QuorumRule.BFT) or members
        everybody = heard_in_round(members, min(selected, members), model_bytes)
        few = heard_in_round(members, min(selected, members), model_bytes, voters=size)
        points.append(
            TrafficPoint(
                members, size, everybody.num_bytes, few.num_bytes, everybody.num_signatures, few.num_signatures
            )
        )
    return points


def study_exchange(scenario: Scenario, sizes: Sequence[int], fan_outs: Sequence[int]) -> list[ExchangePoint]:
    """Exchange all to all and in trees, among the first clients of a scenario in its first round; all of them train."""
    training_s, rate = draw_links(scenario)
    model_bits = float(draw_federation(scenario).model_bits[0])
    points = []
    for members in sizes:
        for fan_out in (0, *fan_outs):
            there = training_s[:members], rate[:members], model_bits
            found = exchange_all(*there) if fan_out == 0 else exchange_tree(*there, fan_out)
            bits_per_mb = 8e6
            points.append(
                ExchangePoint(
                    members,
                    fan_out,
                    found.delay_s,
                    found.most_received_bits / bits_per_mb,
                    found.most_held_bits / bits_per_mb,
                )
            )
    return points


def draw_links(scenario: Scenario) -> tuple[PerClient, PerClient]:
    """Training time (s) at the initial frequency and uplink rate (bit/s) of every client in the first round."""
    federation = draw_federation(scenario)
    state = next(draw_rounds(scenario, federation))
    radio = scenario.radio
    rate = uplink_rate(radio.bandwidth_hz, federation.power_w, state.gain, radio.noise_w_per_hz)
    return training_time(federation.cycles, federation.initial_cpu_hz), np.asarray(rate)
