"""The options of commands that spread work: over processes of this machine, or over a Ray cluster."""

from enum import StrEnum
from typing import Annotated

import typer

from bdfl.errors import BdflError


class Engine(StrEnum):
    """Where work is done; results do not depend on it."""

    LOCAL = "local"
    RAY = "ray"


class BadEngine(BdflError):
    """Options of engines that do not go together."""


EngineOption = Annotated[
    Engine, typer.Option("--engine", help="Processes of this machine, or a Ray cluster. Results do not depend on it.")
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="A Ray cluster's: HOST:PORT, ray://HOST:PORT or auto; one is started unless given."),
]


def validate_address(engine: Engine, address: str | None) -> None:
    """Raises `BadEngine` for an address that nobody would use."""
    if address is not None and engine is not Engine.RAY:
        raise BadEngine("--address: given with --engine local, --engine ray expected")
