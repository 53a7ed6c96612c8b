"""Server-side optimizers: the step from a round's aggregate to the next global model, with momentum or as Adam.

A step is elementwise in float64, with single operations that IEEE 754 rounds correctly; each result is rounded once to
float32, so the same bytes follow on any machine. What exceeds float32 becomes its largest number: finite updates always
give a finite model, and no member can stop a chain by an overflow.

The moments are part of the global model: its file is that of the weights, followed by a file of the same form for each
moment. So whoever has the newest model can make and check the next step. The untrained model has no moments yet.

[Hsu19] Hsu, Qi, Brown: "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
2019.
[Reddi21] Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: "Adaptive Federated Optimization", ICLR 2021.
"""

import fractions
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bdfl.aggregation import validate_arithmetic
from bdfl.learning.weights import InvalidWeights, Layout, Vector, decode_weights, encode_weights, file_size
from bdfl.scenario.schema_learning import MICRO, SERVER_LIMIT, Aggregation, ServerOptimizer

ModelState = NDArray[np.float32]  # (1 + moments, parameters): the weights, then each moment
_Block = NDArray[np.float64]

_BLOCK_ENTRIES = 2**16  # coordinates of a step at a time: they stay in the CPU cache
_LARGEST = float(np.finfo(np.float32).max)
_USUAL_RATES = {ServerOptimizer.MOMENTUM: 1.0, ServerOptimizer.ADAM: 0.01}
_PARAMETERS = {  # as the genesis writes them
    ServerOptimizer.MOMENTUM: ("rate", "beta"),
    ServerOptimizer.ADAM: ("rate", "beta1", "beta2", "epsilon"),
}


@dataclass(frozen=True)
class ServerSettings:
    """An optimizer and its parameters in millionths, in the order of `_PARAMETERS`."""

    kind: ServerOptimizer
    micro: tuple[int, ...]

    @property
    def num_moments(self) -> int:
        return 2 if self.kind is ServerOptimizer.ADAM else 1

    @property
    def is_valid(self) -> bool:
        """True if every parameter is within the limits of a scenario."""
        names = zip(_PARAMETERS[self.kind], self.micro, strict=True)
        return all(
            0 <= value < MICRO if name.startswith("beta") else 1 <= value <= SERVER_LIMIT * MICRO
            for name, value in names
        )


def settings_of(choice: Aggregation) -> ServerSettings | None:
    """The server's optimizer of a scenario; none: the aggregate is the next model."""
    if choice.server is ServerOptimizer.NONE:
        return None
    rate = _USUAL_RATES[choice.server] if choice.server_rate is None else choice.server_rate
    values = (rate, *choice.server_betas, choice.server_epsilon)[: len(_PARAMETERS[choice.server])]
    return ServerSettings(choice.server, tuple(round(fractions.Fraction(value) * MICRO) for value in values))


def write_rule(choice: Aggregation) -> str:
    """The aggregation rule and the server's optimizer as the text of a genesis: the rule alone if there is none."""
    server = settings_of(choice)
    if server is None:
        return choice.rule
    parameters = zip(_PARAMETERS[server.kind], server.micro, strict=True)
    return " ".join([choice.rule, server.kind, *(f"{name}={value}e-6" for name, value in parameters)])


def read_rule(text: str) -> tuple[str, ServerSettings | None]:
    """The rule and the optimizer in a genesis; a text that `write_rule` cannot give is a rule that does not exist."""
    rule, _, rest = text.partition(" ")
    for kind, names in _PARAMETERS.items():
        form = " ".join([kind, *(f"{name}=(0|[1-9][0-9]{{0,9}})e-6" for name in names)])
        found = re.fullmatch(form, rest)
        if found is not None:
            server = ServerSettings(kind, tuple(map(int, found.groups())))
            return (rule, server) if server.is_valid else (text, None)
    return text, None


def first_state(server: ServerSettings, weights: Vector) -> ModelState:
    """The untrained model with its moments: 0, and tau^2 for the second one of Adam [Reddi21, Algorithm 2]."""
    state = np.zeros((1 + server.num_moments, weights.size), np.float32)
    state[0] = weights
    if server.kind is ServerOptimizer.ADAM:
        epsilon = server.micro[-1] / MICRO
        state[2] = epsilon * epsilon
    return state


def take_step(server: ServerSettings, state: ModelState, aggregate: Vector) -> ModelState:
    """The global model after a round, with its moments; `aggregate` is what the rule made of the updates."""
    validate_arithmetic()
    step = _adam if server.kind is ServerOptimizer.ADAM else _momentum
    result = np.empty_like(state)
    for start in range(0, aggregate.size, _BLOCK_ENTRIES):
        part = slice(start, start + _BLOCK_ENTRIES)
        for row, values in enumerate(step(server, state[:, part].astype(np.float64), aggregate[part])):
            result[row, part] = np.clip(values, -_LARGEST, _LARGEST)
    return result


def _momentum(server: ServerSettings, state: _Block, aggregate: Vector) -> tuple[_Block, ...]:
    """v = beta v + (W - A); W = W - rate v: FedAvgM [Hsu19]."""
    rate, beta = (value / MICRO for value in server.micro)
    weights, moment = state
    moment = beta * moment + (weights - aggregate)
    return weights - rate * moment, moment


def _adam(server: ServerSettings, state: _Block, aggregate: Vector) -> tuple[_Block, ...]:
    """m = b1 m + (1 - b1) D; v = b2 v + (1 - b2) D^2; W = W + rate m / (sqrt(v) + tau), with D = A - W.

    FedAdam [Reddi21, Algorithm 2]: moments keep their bias, tau is `epsilon`.
    """
    rate, first, second, epsilon = (value / MICRO for value in server.micro)
    new_first, new_second = ((MICRO - value) / MICRO for value in server.micro[1:3])
    weights, mean, square = state
    change = aggregate - weights
    mean = first * mean + new_first * change
    square = second * square + new_second * (change * change)
    return weights + rate * mean / (np.sqrt(square) + epsilon), mean, square


def encode_state(state: ModelState, layout: Layout) -> bytes:
    """Encode a global model with its moments: a file of weights for each row, one after the other."""
    return b"".join(encode_weights(row, layout) for row in state)


def decode_state(server: ServerSettings, data: bytes, layout: Layout) -> ModelState:
    """Decode a global model with its moments from untrusted bytes.

    Raises `InvalidWeights` unless these are the files that `encode_state` writes, or the untrained model's.
    """
    size = file_size(layout)
    if len(data) == size:
        return first_state(server, decode_weights(data, layout))
    state = np.empty((1 + server.num_moments, layout.num_parameters), np.float32)
    if len(data) != size * len(state):
        raise InvalidWeights(f"weights: {len(data)} bytes given, expected {size} or {size * len(state)} for this model")
    for number, row in enumerate(state):
        decode_weights(data[number * size : (number + 1) * size], layout, row)
    if server.kind is ServerOptimizer.ADAM and bool(np.any(state[2] < 0)):
        raise InvalidWeights("weights: a second moment below 0 given, expected 0 or more")
    return state
