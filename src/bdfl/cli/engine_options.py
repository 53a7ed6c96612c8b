"""Options of commands that distribute work over local processes or a Ray cluster."""

from enum import StrEnum
from typing import Annotated

import typer

from bdfl.errors import BdflError


class Engine(StrEnum):
    """The executor of the work; results do not depend on it."""

    LOCAL = "local"
    RAY = "ray"


class BadEngine(BdflError):
    """Options of an engine that exclude each other."""


EngineOption = Annotated[
    Engine, typer.Option("--engine", help="Local processes or a Ray cluster. Does not change results.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Address of a Ray cluster: HOST:PORT, ray://HOST:PORT or auto.",
        show_default="a new local cluster",
    ),
]


def validate_address(engine: Engine, address: str | None) -> None:
    """Raise `BadEngine` for an address without the Ray engine."""
    if address is not None and engine is not Engine.RAY:
        raise BadEngine("--address: given with --engine local, --engine ray expected")
