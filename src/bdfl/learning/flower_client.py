"""Existing Flower clients by name: a `client_fn` or a `ClientApp`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import require
from bdfl.learning.flower_answers import FlowerClient
from bdfl.learning.flower_arrays import Arrays, BadArrays, name_arrays
from bdfl.learning.own_function import find_function


def find_client(name: str) -> FlowerClient:
    """Load the Flower client module:name; raise `MissingExtra` or `BadFunction`."""
    require("a Flower client", "flwr.app")
    from flwr.clientapp import ClientApp

    from bdfl.learning.flower_app import AppClient, FunctionApp
    from bdfl.learning.flower_function import FunctionClient

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
