"""Clients made by a `client_fn`: a new Flower client for every request, as in Flower."""

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from bdfl.learning.flower_answers import (
    ACCURACY,
    LOSS,
    TRAIN_LOSS,
    BadAnswer,
    Config,
    Fitted,
    Judged,
    Place,
    make_context,
    message_config,
    read_count,
    read_number,
    read_three,
    rename_arrays,
    validate_status,
)
from bdfl.learning.flower_arrays import Arrays, name_arrays
from bdfl.learning.training import NAN

if TYPE_CHECKING:
    from flwr.client import Client, NumPyClient


class FunctionClient:
    """A `client_fn` that returns a `NumPyClient` or a `Client`."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def initial(self, place: Place) -> Arrays | None:
        from flwr.client import NumPyClient

        client = self._make(place)
        if type(client).get_parameters is NumPyClient.get_parameters:
            return None
        return name_arrays(client.get_parameters(dict(place.config))) or None

    def fit(self, place: Place, round: int, arrays: Arrays) -> Fitted:
        answer = self._make(place).fit(list(arrays.values()), message_config(place, round))
        found, num_examples, metrics = read_three(answer, "fit", "arrays, the number of examples and metrics")
        named = rename_arrays(name_arrays(found), arrays)
        return Fitted(named, read_count(num_examples), read_number(metrics, TRAIN_LOSS))

    def evaluate(self, place: Place, round: int, arrays: Arrays) -> Judged | None:
        from flwr.client import NumPyClient

        client = self._make(place)
        if type(client).evaluate is NumPyClient.evaluate:
            return None
        answer = client.evaluate(list(arrays.values()), message_config(place, round))
        loss, num_examples, metrics = read_three(answer, "evaluate", "a loss, the number of examples and metrics")
        return Judged(read_number({"loss": loss}, LOSS), read_number(metrics, ACCURACY), read_count(num_examples))

    def _make(self, place: Place) -> "NumPyClient | _PlainClient":
        from flwr.client import Client, NumPyClient

        asks_for_number = _asks_for_number(self._function)  # the API before contexts
        client = self._function(str(place.client) if asks_for_number else make_context(place))
        inner = getattr(client, "numpy_client", client)  # as wrapped by to_client: avoids serialising arrays
        if isinstance(inner, NumPyClient):
            return inner
        if isinstance(client, Client):
            return _PlainClient(client)
        raise BadAnswer(f"it gave a {type(client).__name__}, expected a Flower client")


class _PlainClient:
    """A Flower `Client`, whose arrays are bytes, behind the interface of a `NumPyClient`."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def get_parameters(self, config: Config) -> list[NDArray[Any]]:
        from flwr.common import Code, GetParametersIns, parameters_to_ndarrays

        found = self._client.get_parameters(GetParametersIns(dict(config)))
        return parameters_to_ndarrays(found.parameters) if found.status.code is Code.OK else []

    def fit(self, arrays: list[NDArray[Any]], config: Config) -> tuple[object, object, object]:
        from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays

        found = self._client.fit(FitIns(ndarrays_to_parameters(arrays), dict(config)))
        validate_status(found.status.code.value, found.status.message)
        return parameters_to_ndarrays(found.parameters), found.num_examples, found.metrics

    def evaluate(self, arrays: list[NDArray[Any]], config: Config) -> tuple[object, object, object]:
        from flwr.common import Code, EvaluateIns, ndarrays_to_parameters

        found = self._client.evaluate(EvaluateIns(ndarrays_to_parameters(arrays), dict(config)))
        if found.status.code is Code.EVALUATE_NOT_IMPLEMENTED:
            return NAN, 0, {}
        validate_status(found.status.code.value, found.status.message)
        return found.loss, found.num_examples, found.metrics


def _asks_for_number(function: Callable[..., object]) -> bool:
    """Return whether a `client_fn` takes the client's number as text instead of a context."""
    try:
        arguments = list(signature(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if len(arguments) != 1:
        raise BadAnswer(f"it takes {len(arguments)} arguments, expected one, the context")
    return arguments[0].name == "cid" or arguments[0].annotation in (str, "str")
