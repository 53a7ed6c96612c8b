"""IPC messages between a node and its training process: length-prefixed MessagePack over pipes."""

from typing import IO, TypeAlias, TypeVar

import msgspec

from bdfl.errors import BdflError, one_line

DEALT = "dealt"  # instead of a path: the client's partition of the scenario's data
_LENGTH_BYTES = 8
_MAX_BYTES = 2**34


class BrokenPipeline(BdflError):
    """The training process sent an invalid message."""


# Orders


class Setup(msgspec.Struct, frozen=True, array_like=True, tag="setup"):
    """Configuration of the process; sent once, first."""

    scenario: str  # TOML
    client: int
    data: str  # `DEALT`, or a file or folder with the client's data only
    model: bytes = b""  # safetensors: the agreed initial model, which data must fit; empty: unknown
    label_counts: tuple[int, ...] = ()  # of the member's card; empty: no card yet


class TrainOrder(msgspec.Struct, frozen=True, array_like=True, tag="train"):
    """Order to train the client in a round, from this model."""

    number: int
    round: int
    model: bytes  # safetensors; empty: the initial model
    rounds_before: int = 0  # in which the client may have spent epsilon


class JudgeOrder(msgspec.Struct, frozen=True, array_like=True, tag="judge"):
    """Order to evaluate a model on the test data."""

    number: int
    model: bytes


class StopOrder(msgspec.Struct, frozen=True, array_like=True, tag="stop"):
    """Order to stop this training and all before it."""

    number: int


Order: TypeAlias = Setup | TrainOrder | JudgeOrder | StopOrder


# Answers


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The process has loaded its data and model, of these sizes."""

    samples: int
    label_counts: tuple[int, ...]
    test_samples: int
    num_parameters: int
    model_size: int  # bytes


class Unready(msgspec.Struct, frozen=True, array_like=True, tag="unready"):
    """The process can never train."""

    reason: str


class Trained(msgspec.Struct, frozen=True, array_like=True, tag="trained"):
    """Result of a finished training; no model if it diverged or there are no samples."""

    number: int
    model: bytes | None
    loss: float  # mean over the local steps; NaN if none
    num_samples: int  # seen in all mini-batches
    duration_ns: int  # of training alone
    epsilon_micro: int = 0  # spent so far; 0: not private


class Judged(msgspec.Struct, frozen=True, array_like=True, tag="judged"):
    """Accuracy and loss of a model on the test data."""

    number: int
    accuracy: float
    loss: float


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """A training was stopped."""

    number: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """An order failed."""

    number: int
    reason: str


Answer: TypeAlias = Ready | Unready | Trained | Judged | Stopped | Failed

# Module-level: creating decoders concurrently in threads crashes the interpreter (msgspec 0.22).
ORDERS: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)

_Said = TypeVar("_Said", Order, Answer)


def write_piece(stream: IO[bytes], said: Order | Answer) -> None:
    """Write one message and flush."""
    data = msgspec.msgpack.encode(said)
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    stream.write(data)
    stream.flush()


def read_piece(stream: IO[bytes], decoder: msgspec.msgpack.Decoder[_Said]) -> _Said | None:
    """Read the next message; None at end of file."""
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
