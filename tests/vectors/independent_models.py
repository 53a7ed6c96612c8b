"""Models of a chain, their aggregation and the server's optimizer as FORMAT.md says: section 6; nothing of bdfl."""

import json
import re
import struct
from itertools import combinations
from math import prod, sqrt

from tests.vectors.independent_format import require

LARGEST = (2 - 2.0**-23) * 2.0**127


def file_head(tensors):
    parts, start = {}, 0
    for tensor in sorted(tensors, key=lambda tensor: tensor.name.encode()):
        end = start + 4 * prod(tensor.shape)
        parts[tensor.name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_model(data, tensors):
    """All numbers of a model in the order of genesis."""
    head = file_head(tensors)
    require(len(data) == len(head) + 4 * sum(prod(tensor.shape) for tensor in tensors), "model: size")
    require(data.startswith(head), "model: header")
    starts = {name: found["data_offsets"][0] for name, found in json.loads(head[8:]).items()}
    numbers = []
    for tensor in tensors:
        numbers += struct.unpack_from(f"<{prod(tensor.shape)}f", data, len(head) + starts[tensor.name])
    require(all(abs(number) < float("inf") for number in numbers), "model: not finite")
    return numbers


def write_model(numbers, tensors):
    parts, start = {}, 0
    for tensor in tensors:
        size = prod(tensor.shape)
        parts[tensor.name] = struct.pack(f"<{size}f", *numbers[start : start + size])
        start += size
    return file_head(tensors) + b"".join(parts[name] for name in sorted(parts, key=str.encode))


def aggregate(rule, faulty, updates, samples):
    """One number for each coordinate; packing them as float32 does the rounding."""
    count = len(updates)
    if rule == "mean":
        return [divide(column, samples, sum(samples)) for column in zip(*updates, strict=True)]
    if rule in ("median", "trimmed-mean"):
        columns = [sorted(column) for column in zip(*updates, strict=True)]
        if rule == "median":
            return [(column[(count - 1) // 2] + column[count // 2]) / 2 + 0.0 for column in columns]
        inner = [column[faulty : count - faulty] for column in columns]
        return [divide(column, [1] * len(column), count - 2 * faulty) for column in inner]
    if rule == "minimum-diameter":
        groups = combinations(range(count), count - faulty)
        chosen = [updates[one] for one in min(groups, key=lambda group: diameter_of(updates, group))]
        return [divide(column, [1] * len(chosen), len(chosen)) for column in zip(*chosen, strict=True)]
    require(rule in ("krum", "multi-krum"), f"aggregation: {rule}")
    order = sorted(range(count), key=lambda one: krum_score(updates, one, count - faulty - 2))
    if rule == "krum":
        return updates[order[0]]
    chosen = [updates[one] for one in sorted(order[: count - faulty])]
    return [divide(column, [1] * len(chosen), len(chosen)) for column in zip(*chosen, strict=True)]


def divide(column, weights, total):
    added = 0.0
    for number, weight in zip(column, weights, strict=True):
        added += weight * number
    return added / total


def krum_score(updates, one, num_nearest):
    score = 0.0
    distances = sorted(distance_of(updates, one, other) for other in range(len(updates)) if other != one)
    for distance in distances[:num_nearest]:
        score += distance
    return score


def diameter_of(updates, group):
    return max((distance_of(updates, one, other) for one, other in combinations(group, 2)), default=0.0)


def distance_of(updates, one, other):
    first, second = updates[min(one, other)], updates[max(one, other)]
    total = 0.0
    for start in range(0, len(first), 16384):
        pairs = zip(second[start : start + 16384], first[start : start + 16384], strict=True)
        gaps = [(right - left) * (right - left) for right, left in pairs]
        while len(gaps) > 1:
            half = (len(gaps) + 1) // 2
            gaps = [gaps[at] + gaps[half + at] if half + at < len(gaps) else gaps[at] for at in range(half)]
        total += gaps[0]
    return total


def fewest_updates(rule, faulty):
    fewest = {"mean": 1} | dict.fromkeys(("median", "trimmed-mean", "minimum-diameter"), 2 * faulty + 1)
    return (fewest | dict.fromkeys(("krum", "multi-krum"), 2 * faulty + 3)).get(rule)


def read_rule(text):
    """The rule of aggregation, and the optimizer with its parameters in millionths; none: there is none."""
    forms = {"momentum": ("rate", "beta"), "adam": ("rate", "beta1", "beta2", "epsilon")}
    words = text.split(" ")
    names = forms.get(words[1]) if len(words) > 1 else None
    if names is None or len(words) != 2 + len(names):
        return text, None
    found = [re.fullmatch(f"{name}=(0|[1-9][0-9]*)e-6", word) for name, word in zip(names, words[2:], strict=True)]
    if not all(found):
        return text, None
    numbers = [int(one[1]) for one in found]
    limits = [(0, 999_999) if name.startswith("beta") else (1, 10**9) for name in names]
    is_within = all(least <= number <= most for number, (least, most) in zip(numbers, limits, strict=True))
    return (words[0], (words[1], numbers)) if is_within else (text, None)


def read_state(server, data, tensors):
    """The weights of a global model and its moments; those before the first step for a file of weights alone."""
    kind, numbers = server
    size = len(file_head(tensors)) + 4 * sum(prod(tensor.shape) for tensor in tensors)
    if len(data) == size:
        weights = read_model(data, tensors)
        first = [0.0] * len(weights)
        [tau_squared] = struct.unpack("<f", struct.pack("<f", (numbers[-1] / 10**6) * (numbers[-1] / 10**6)))
        return [weights, first] if kind == "momentum" else [weights, first, [tau_squared] * len(weights)]
    parts = [read_model(data[start : start + size], tensors) for start in range(0, len(data), size)]
    require(len(parts) == (2 if kind == "momentum" else 3), "model-parent")
    require(kind == "momentum" or min(parts[2], default=0.0) >= 0, "model-parent")
    return parts


def take_step(server, state, aggregate):
    """The weights and moments after a round, one number at a time; each is clamped before it is packed as float32."""
    step = momentum_step if server[0] == "momentum" else adam_step
    rows = zip(*(step(server[1], *one) for one in zip(aggregate, *state, strict=True)), strict=True)
    return [[min(max(number, -LARGEST), LARGEST) for number in row] for row in rows]


def momentum_step(numbers, aggregate, weight, moment):
    rate, beta = (number / 10**6 for number in numbers)
    moment = beta * moment + (weight - aggregate)
    return weight - rate * moment, moment


def adam_step(numbers, aggregate, weight, mean, square):
    rate, beta1, beta2, epsilon = (number / 10**6 for number in numbers)
    gap = aggregate - weight
    mean = beta1 * mean + ((10**6 - numbers[1]) / 10**6) * gap
    square = beta2 * square + ((10**6 - numbers[2]) / 10**6) * (gap * gap)
    return weight + rate * mean / (sqrt(square) + epsilon), mean, square
