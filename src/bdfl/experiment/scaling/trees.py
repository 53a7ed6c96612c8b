"""Aggregation in a tree: every member sums the contributions of its children and sends one sum, not all to all.

Members form a tree of fan-out k by their order: member j's children are k j + 1 to k j + k. Links follow the cost
model: each member sends at its uplink rate and, an assumption the paper does not need, receives at the same rate.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdfl.arrays import PerClient
from bdfl.radio import upload_time

WIDE = 2.0  # an order-independent sum takes 8 bytes a weight, a model 4


@dataclass(frozen=True)
class Exchange:
    """Time until all members have the global model, and the load of the busiest member."""

    delay_s: float
    most_received_bits: float
    most_held_bits: float  # at one time, to do its part
    audit_bits: float  # received to check one aggregation by repeating it


def exchange_all(training_s: PerClient, rate_bit_per_s: PerClient, model_bits: float) -> Exchange:
    """Exchange all to all, as in the protocol: members upload, receive every other model and aggregate themselves."""
    others = len(training_s) - 1
    model_s = upload_time(np.full_like(rate_bit_per_s, model_bits), rate_bit_per_s)
    delay_s = float(np.max(training_s + model_s) + others * np.max(model_s))
    return Exchange(delay_s, others * model_bits, (others + 1) * model_bits, others * model_bits)


def exchange_tree(training_s: PerClient, rate_bit_per_s: PerClient, model_bits: float, fan_out: int) -> Exchange:
    """Exchange in a tree: sums move up a level at a time, then all members receive the root's model.

    A member waits for its slowest child, receives its children's sums one after the other, adds its own and sends one
    sum. The fastest links are nearest the root, where the load is highest.
    """
    order = np.argsort(-rate_bit_per_s, kind="stable")
    trained_s, rate = training_s[order], rate_bit_per_s[order]
    sum_s = upload_time(np.full_like(rate, WIDE * model_bits), rate)
    num_children = count_children(len(rate), fan_out)
    sent_s = np.zeros(len(rate))
    for first, last in reversed(find_levels(len(rate), fan_out)):
        level = np.arange(first, last)
        waited_s = trained_s[level]
        for child in range(1, fan_out + 1):
            number = fan_out * level + child
            there = number < len(rate)
            waited_s[there] = np.maximum(waited_s[there], sent_s[number[there]])
        sent_s[level] = waited_s + (num_children[level] + 1) * sum_s[level]
    root_s = sent_s[0] - sum_s[0]  # the root sends a model, not a sum
    model_s = sum_s / WIDE
    most = int(num_children.max(initial=0))
    return Exchange(
        delay_s=float(root_s + model_s[0] + np.max(model_s)),
        most_received_bits=(WIDE * most + 1) * model_bits,
        most_held_bits=2 * WIDE * model_bits,  # the sum so far and the one being added
        audit_bits=(WIDE * (most + 1) + 1) * model_bits,  # the children's sums, its own model, and the sum it gave
    )


def count_children(members: int, fan_out: int) -> NDArray[np.int64]:
    """Number of children of each member of a tree, (members,)."""
    first = fan_out * np.arange(members) + 1
    return np.clip(members - first, 0, fan_out)


def find_levels(members: int, fan_out: int) -> list[tuple[int, int]]:
    """First member and the one after the last of every level, from the root down."""
    levels, first, last = [], 0, 1
    while first < members:
        levels.append((first, min(last, members)))
        first, last = last, fan_out * last + 1
    return levels


def missed_audit_probability(inner_members: int, auditors: int, audits: int) -> float:
    """Probability that a false aggregation is not audited.

    Each of the honest `auditors` independently draws `audits` different inner members: (1 - a / I)^h.
    """
    return max(1.0 - audits / inner_members, 0.0) ** auditors
