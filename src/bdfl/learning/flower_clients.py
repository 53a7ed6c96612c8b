"""Flower clients behind one protocol: `client_fn` and `ClientApp`, their arrays and messages."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError, require
from bdfl.learning.training import NAN
from bdfl.learning.weights import Layout, Vector
from bdfl.plugins import find_function
from bdfl.scenario.distributions import Parameter

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp


# A Flower client's arrays as one flat vector of float32, and back in the client's own types.

Arrays: TypeAlias = Mapping[str, NDArray[Any]]  # by name, in the client's order

_NUMBERS = "fiu"  # kinds of numpy types that convert to float32: floats and integers
_SHOWN_NAMES = 3


class BadArrays(BdflError):
    """Arrays that do not match a client's model: the arrays found and the form expected."""


@dataclass(frozen=True)
class ArrayForm:
    """Names, shapes and original types of a client's arrays."""

    layout: Layout
    types: tuple[str, ...]  # as numpy writes them, such as <f4

    def join(self, arrays: Arrays) -> Vector:
        """Concatenate the arrays, (parameters,); may not be finite. Raises `BadArrays` unless all match the form."""
        if set(arrays) != set(self.layout.names):
            raise BadArrays(f"{_show_names(arrays)} given, expected {_show_names(self.layout.names)}")
        vector = np.empty(self.layout.num_parameters, np.float32)
        for name, part in self.layout.split(vector):
            found = arrays[name]
            _validate_array(name, found)
            if found.shape != part.shape:
                raise BadArrays(f"array {name!r} of shape {found.shape} given, expected shape {part.shape}")
            with np.errstate(over="ignore"):  # out of range becomes infinite: the training diverged
                part[...] = found
        return vector

    def split(self, weights: Vector) -> dict[str, NDArray[Any]]:
        """Split the weights into new arrays that the client may modify; integers are rounded to the nearest."""
        pairs = zip(self.layout.split(weights), self.types, strict=True)
        return {name: _convert(part, np.dtype(kind)) for (name, part), kind in pairs}


def form_of(arrays: Arrays) -> ArrayForm:
    """Return the form of these arrays; raise `BadArrays` if there are none, or one is not numeric."""
    if not arrays:
        raise BadArrays("no arrays given, expected those of a model")
    for name, array in arrays.items():
        _validate_array(name, array)
    layout = Layout(tuple(arrays), tuple(tuple(map(int, array.shape)) for array in arrays.values()))
    return ArrayForm(layout, tuple(array.dtype.str for array in arrays.values()))


def name_arrays(arrays: object) -> dict[str, NDArray[Any]]:
    """Name a plain list of arrays arr_0, arr_1, ...; raise `BadArrays` for anything else."""
    if not isinstance(arrays, list | tuple):
        raise BadArrays(f"a {type(arrays).__name__} given, expected a list of arrays")
    for place, array in enumerate(arrays):
        if not isinstance(array, np.ndarray | np.generic):
            raise BadArrays(f"a {type(array).__name__} at place {place} given, expected a numpy array")
    return {f"arr_{place}": np.asarray(array) for place, array in enumerate(arrays)}


def _validate_array(name: str, array: NDArray[Any]) -> None:
    if array.dtype.kind not in _NUMBERS:
        raise BadArrays(f"array {name!r} of type {array.dtype} given, expected numbers")


def _convert(part: Vector, kind: np.dtype[Any]) -> NDArray[Any]:
    return np.array(part if kind.kind == "f" else np.rint(part), dtype=kind)


def _show_names(names: Arrays | tuple[str, ...]) -> str:
    shown = ", ".join(list(names)[:_SHOWN_NAMES]) + (", ..." if len(names) > _SHOWN_NAMES else "")
    return f"{len(names)} arrays ({shown})" if names else "no arrays"


# Requests to Flower clients and validation of their answers, independent of the client's API.

PARTITION, NUM_PARTITIONS = "partition-id", "num-partitions"  # in node_config, as in Flower's simulation
ROUND = "server-round"  # in the config of a message, as in Flower's strategies
RUN = 1  # every run is the first one from Flower's point of view
# Metric keys that clients use; the first one present counts.
EXAMPLES = ("num-examples", "num_examples")
ACCURACY = ("accuracy", "eval_acc", "eval_accuracy", "eval-accuracy", "val_accuracy", "acc")
TRAIN_LOSS = ("train_loss", "train-loss", "loss")
LOSS = ("loss", "eval_loss", "eval-loss", "val_loss")


Config: TypeAlias = "dict[str, bool | bytes | float | int | str]"  # types that Flower allows in a config


class BadAnswer(BdflError):
    """An invalid answer of a Flower client: the value found and the form expected."""


@dataclass(frozen=True)
class Place:
    """A client's number, the number of clients, and the settings of the run."""

    client: int
    num_clients: int
    config: Mapping[str, Parameter]


@dataclass(frozen=True, eq=False)
class FitResult:
    """Result of a client's training, as received."""

    arrays: Arrays
    num_examples: int
    loss: float  # NaN if not reported


@dataclass(frozen=True)
class Judged:
    """Evaluation of a model on a client's own test data; NaN if not reported."""

    loss: float
    accuracy: float
    num_examples: int


class FlowerClient(Protocol):
    """A Flower client of any API; each call is a separate message."""

    def initial(self, place: Place) -> Arrays | None:
        """Return the client's initial arrays; None if it cannot provide them."""
        ...

    def fit(self, place: Place, round: int, arrays: Arrays) -> FitResult: ...

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        """Evaluate the arrays; None if the client does not evaluate."""
        ...


def make_context(place: Place) -> "Context":
    """Make the context passed to a client; its state is new in every message and discarded afterwards."""
    from flwr.app import Context, RecordDict

    return Context(
        run_id=RUN,
        node_id=place.client,
        node_config={PARTITION: place.client, NUM_PARTITIONS: place.num_clients},
        state=RecordDict(),
        run_config=dict(place.config),
    )


def message_config(place: Place, round: int) -> Config:
    """Config of a message: the run's settings and the round."""
    return {**place.config, ROUND: round}


def rename_arrays(found: Arrays, asked: Arrays) -> Arrays:
    """Give arrays received as a list the names of those that were sent."""
    if len(found) != len(asked):
        raise BadArrays(f"{len(found)} arrays given, expected {len(asked)}")
    return dict(zip(asked, found.values(), strict=True))


def read_three(answer: object, what: str, expected: str) -> tuple[object, object, Mapping[str, object]]:
    """Return the three parts of a result of `fit` or `evaluate`; raise `BadAnswer` for anything else."""
    if not isinstance(answer, Sequence) or len(answer) != 3 or not isinstance(answer[2], Mapping):
        found = f"{len(answer)} things" if isinstance(answer, tuple) else f"a {type(answer).__name__}"
        raise BadAnswer(f"{what} gave {found}, expected {expected}")
    return answer[0], answer[1], answer[2]


def read_count(value: object) -> int:
    """Return a number of examples; raise `BadAnswer` for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # metrics of a message are often floats
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 0:
        raise BadAnswer(f"{value!r} given as the number of examples, expected a whole number from 0")
    return int(value)


def read_first(metrics: Mapping[str, object], keys: Sequence[str]) -> object:
    """Return the first of these metrics that is present; None if none is."""
    return next((metrics[key] for key in keys if key in metrics), None)


def read_number(metrics: Mapping[str, object], keys: Sequence[str]) -> float:
    """Return the first of these metrics as a number; NaN if none is present or it is not finite."""
    value = read_first(metrics, keys)
    if not isinstance(value, int | float | np.integer | np.floating):
        return NAN
    return float(value) if math.isfinite(value) else NAN


def validate_status(code: object, message: object) -> None:
    """Raise `BadAnswer` unless a client reports success."""
    if code != 0:
        raise BadAnswer(f"it answered with status {code}: {message}")


# A Flower `ClientApp`, called with the messages a Flower server would send.


class AppClient:
    """A `ClientApp` that answers train and evaluate messages: records "arrays", "config" and "metrics"."""

    def __init__(self, app: "ClientApp") -> None:
        self._app = app

    def initial(self, place: Place) -> Arrays | None:
        return None

    def fit(self, place: Place, round: int, arrays: Arrays) -> FitResult:
        answer = _send(self._app, place, "train", {"arrays": arrays}, {"config": message_config(place, round)})
        metrics = _read_metrics(answer)
        num_examples = read_count(read_first(metrics, EXAMPLES))
        return FitResult(_read_arrays(answer), num_examples, read_number(metrics, TRAIN_LOSS))

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        known = getattr(self._app, "_registered_funcs", None)
        if known is not None and "evaluate.default" not in known:
            return None
        answer = _send(self._app, place, "evaluate", {"arrays": arrays}, {"config": message_config(place, round)})
        metrics = _read_metrics(answer)
        num_examples = read_count(read_first(metrics, EXAMPLES))
        return Judged(read_number(metrics, LOSS), read_number(metrics, ACCURACY), num_examples)


class FunctionApp:
    """A `ClientApp` made of a `client_fn`, possibly with mods: messages of Flower's older API."""

    def __init__(self, app: "ClientApp") -> None:
        self._app = app

    def initial(self, place: Place) -> Arrays | None:
        answer = _send(self._app, place, "get_parameters", {}, {"getparametersins.config": dict(place.config)})
        if answer.config_records["getparametersres.status"]["code"] != 0:
            return None
        return name_arrays(answer.array_records["getparametersres.parameters"].to_numpy_ndarrays()) or None

    def fit(self, place: Place, round: int, arrays: Arrays) -> FitResult:
        config = {"fitins.config": message_config(place, round)}
        answer = _send(self._app, place, "train", {"fitins.parameters": arrays}, config)
        status = answer.config_records["fitres.status"]
        validate_status(status["code"], status["message"])
        found = name_arrays(answer.array_records["fitres.parameters"].to_numpy_ndarrays())
        num_examples = answer.metric_records["fitres.num_examples"]["num_examples"]
        metrics = answer.config_records["fitres.metrics"]
        return FitResult(rename_arrays(found, arrays), read_count(num_examples), read_number(metrics, TRAIN_LOSS))

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        from flwr.common import Code

        config = {"evaluateins.config": message_config(place, round)}
        answer = _send(self._app, place, "evaluate", {"evaluateins.parameters": arrays}, config)
        status = answer.config_records["evaluateres.status"]
        if status["code"] == Code.EVALUATE_NOT_IMPLEMENTED.value:
            return None
        validate_status(status["code"], status["message"])
        loss = read_number(answer.metric_records["evaluateres.loss"], LOSS)
        num_examples = answer.metric_records["evaluateres.num_examples"]["num_examples"]
        metrics = answer.config_records["evaluateres.metrics"]
        return Judged(loss, read_number(metrics, ACCURACY), read_count(num_examples))


def _send(
    app: "ClientApp",
    place: Place,
    kind: str,
    arrays: Mapping[str, Arrays],
    configs: Mapping[str, Config],
) -> "RecordDict":
    """Send a message to the app and return the content of its answer."""
    from flwr.app import ConfigRecord, Message, RecordDict

    content = RecordDict()
    for key, some in arrays.items():
        content[key] = _make_record(some)
    for key, config in configs.items():
        content[key] = ConfigRecord(dict(config))
    answer = app(_make_message(content, place, kind), make_context(place))
    if not isinstance(answer, Message):
        raise BadAnswer(f"it gave a {type(answer).__name__}, expected a message")
    if answer.has_error():
        raise BadAnswer(f"it answered with error {answer.error.code}: {answer.error.reason}")
    return answer.content


def _make_message(content: "RecordDict", place: Place, kind: str) -> "Message":
    """Make a message without a Flower server, which would fill in the sender."""
    from flwr.app import DEFAULT_TTL, Message, Metadata

    metadata = Metadata(
        run_id=RUN,
        message_id="",
        src_node_id=place.client,
        dst_node_id=place.client,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=DEFAULT_TTL,
        message_type=kind,
    )
    return Message(content=content, metadata=metadata)  # type: ignore[call-overload,no-any-return]


def _make_record(arrays: Arrays) -> "ArrayRecord":
    from flwr.app import Array, ArrayRecord

    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = Array(array)
    return record


def _read_arrays(answer: "RecordDict") -> Arrays:
    """Arrays of an answer: the record "arrays" used by strategies, or the only record of arrays."""
    records = answer.array_records
    if "arrays" not in records and len(records) != 1:
        raise BadAnswer(f"{len(records)} records of arrays given, expected one")
    record = records["arrays"] if "arrays" in records else next(iter(records.values()))
    return {name: array.numpy() for name, array in record.items()}


def _read_metrics(answer: "RecordDict") -> dict[str, object]:
    return {key: value for record in answer.metric_records.values() for key, value in record.items()}


# Existing Flower clients by name: a `client_fn` or a `ClientApp`.


def find_client(name: str) -> FlowerClient:
    """Load the Flower client module:name; raise `MissingExtra` or `BadFunction`."""
    require("a Flower client", "flwr.app")
    from flwr.clientapp import ClientApp

    found = find_function(name)
    if not isinstance(found, ClientApp):
        return FunctionClient(found)
    return FunctionApp(found) if getattr(found, "_call", None) is not None else AppClient(found)


def find_first_arrays(name: str) -> Arrays:
    """Return the arrays made by module:name: a PyTorch module, its state, an `ArrayRecord` or a list of arrays."""
    made = find_function(name)()
    state = getattr(made, "state_dict", None)
    found = state() if callable(state) else made
    if not isinstance(found, Mapping):
        return name_arrays(found)
    return {str(key): _to_array(str(key), value) for key, value in found.items()}


def _to_array(name: str, value: object) -> NDArray[Any]:
    """Convert a tensor, a Flower array or a numpy array to a numpy array."""
    if isinstance(value, np.ndarray):
        return value
    detach, numpy = getattr(value, "detach", None), getattr(value, "numpy", None)
    found = detach().cpu().numpy() if callable(detach) else numpy() if callable(numpy) else None
    if not isinstance(found, np.ndarray):
        raise BadArrays(f"a {type(value).__name__} called {name!r} given, expected an array")
    return found


# Clients made by a `client_fn`: a new Flower client for every request, as in Flower.


class FunctionClient:
    """A `client_fn` that returns a `NumPyClient` or a `Client`."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def initial(self, place: Place) -> Arrays | None:
        return self._make(place).initial(place)

    def fit(self, place: Place, round: int, arrays: Arrays) -> FitResult:
        return self._make(place).fit(place, round, arrays)

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        return self._make(place).evaluate(place, round, arrays)

    def _make(self, place: Place) -> FlowerClient:
        from flwr.client import Client, NumPyClient
        from flwr.clientapp import ClientApp

        asks_for_number = _asks_for_number(self._function)  # the API before contexts
        client = self._function(str(place.client) if asks_for_number else make_context(place))
        inner = getattr(client, "numpy_client", client)  # as wrapped by to_client: avoids serialising arrays
        if isinstance(inner, NumPyClient):
            return _ArraysClient(inner)
        if isinstance(client, Client):
            return FunctionApp(ClientApp(lambda context: client))
        raise BadAnswer(f"it gave a {type(client).__name__}, expected a Flower client")


class _ArraysClient:
    """A `NumPyClient`, called without messages."""

    def __init__(self, client: "NumPyClient") -> None:
        self._client = client

    def initial(self, place: Place) -> Arrays | None:
        from flwr.client import NumPyClient

        if type(self._client).get_parameters is NumPyClient.get_parameters:
            return None
        return name_arrays(self._client.get_parameters(dict(place.config))) or None

    def fit(self, place: Place, round: int, arrays: Arrays) -> FitResult:
        answer = self._client.fit(list(arrays.values()), message_config(place, round))
        found, num_examples, metrics = read_three(answer, "fit", "arrays, the number of examples and metrics")
        named = rename_arrays(name_arrays(found), arrays)
        return FitResult(named, read_count(num_examples), read_number(metrics, TRAIN_LOSS))

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        from flwr.client import NumPyClient

        if type(self._client).evaluate is NumPyClient.evaluate:
            return None
        answer = self._client.evaluate(list(arrays.values()), message_config(place, round))
        loss, num_examples, metrics = read_three(answer, "evaluate", "a loss, the number of examples and metrics")
        return Judged(read_number({"loss": loss}, LOSS), read_number(metrics, ACCURACY), read_count(num_examples))


def _asks_for_number(function: Callable[..., object]) -> bool:
    """Return whether a `client_fn` takes the client's number as text instead of a context."""
    try:
        arguments = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if len(arguments) != 1:
        raise BadAnswer(f"it takes {len(arguments)} arguments, expected one, the context")
    return arguments[0].name == "cid" or arguments[0].annotation in (str, "str")
