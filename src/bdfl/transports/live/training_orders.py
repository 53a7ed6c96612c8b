"""What a node and its training process say to each other, over pipes: MessagePack, each piece after its length."""

from typing import IO, TypeAlias, TypeVar

import msgspec

from bdfl.errors import BdflError, one_line

DEALT = "dealt"  # instead of a path: the scenario's own data, dealt out by its partition
_LENGTH_BYTES = 8
_MAX_BYTES = 2**34


class BrokenPipeline(BdflError):
    """Bytes of a training process that are nothing it says."""


# Orders


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    """What the process is for: said once, before anything else."""

    scenario: str  # TOML
    client: int
    data: str  # `DEALT`, or a file or folder of which everything is the client's
    model: bytes = b""  # safetensors: the untrained one that all agreed on, which data must fit; none: not known
    label_counts: tuple[int, ...] = ()  # by the member's card; none: no card yet


class TrainOrder(msgspec.Struct, frozen=True, array_like=True, tag="train"):
    """Train the client in a round, from this model."""

    number: int
    round: int
    model: bytes  # safetensors; none: the untrained one
    rounds_before: int = 0  # in which the client may have spent epsilon


class JudgeOrder(msgspec.Struct, frozen=True, array_like=True, tag="judge"):
    """Try a model on the test data."""

    number: int
    model: bytes


class StopOrder(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Train no longer: this order, and all before it."""

    number: int


Order: TypeAlias = Setup | TrainOrder | JudgeOrder | StopOrder


# Answers


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The process has its data and its model: what the client holds, and how large a model is."""

    samples: int
    label_counts: tuple[int, ...]
    test_samples: int
    num_parameters: int
    model_size: int  # bytes


class Unready(msgspec.Struct, frozen=True, array_like=True, tag="unready"):
    """The process can never do what it is for."""

    reason: str


class Trained(msgspec.Struct, frozen=True, array_like=True, tag="trained"):
    """A training that came to its end; no model where it diverged, or where there are no samples."""

    number: int
    model: bytes | None
    loss: float  # mean over the local steps; NaN where there is none
    num_samples: int  # seen, one by one, in all mini-batches
    duration_ns: int  # of training alone
    epsilon_micro: int = 0  # spent so far; 0: not private


class Judged(msgspec.Struct, frozen=True, array_like=True, tag="judged"):
    """How well a model does on the test data."""

    number: int
    accuracy: float
    loss: float


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """A training that was left."""

    number: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """An order that cannot be done."""

    number: int
    reason: str


Answer: TypeAlias = Ready | Unready | Trained | Judged | Stopped | Failed

# Made here and not where they are used: threads that make decoders at once crash the interpreter (msgspec 0.22).
ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

_Said = TypeVar("_Said", Order, Answer)


def write_piece(stream: IO[bytes], said: Order | Answer) -> None:
    """Says one thing."""
    data = msgspec.msgpack.encode(said)
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    stream.write(data)
    stream.flush()


def read_piece(stream: IO[bytes], decoder: msgspec.msgpack.Decoder[_Said]) -> _Said | None:
    """The next thing said; none where the other side is gone."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    if length > _MAX_BYTES:
        raise BrokenPipeline(f"training process: a piece of {length} bytes announced, at most {_MAX_BYTES} expected")
    data = stream.read(length)
    if len(data) < length:
        return None
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise BrokenPipeline(f"training process: {one_line(error)}") from None
