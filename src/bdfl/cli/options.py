"""Options, arguments and steps that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.terminal import BadUsage, print_files, writing_to
from bdfl.errors import BdflError, MissingExtra, require
from bdfl.scenario.validation import toml_value

if TYPE_CHECKING:
    from bdfl.ledger.sqlite_store import ChainStore
    from bdfl.report.style import Picture
    from bdfl.scenario import Scenario

RESULTS = Path("results")


def complete_scenario() -> list[str]:
    """Return the names of the shipped scenarios, for shell completion; the shell adds files if none matches."""
    from bdfl.scenario.files import shipped_scenarios

    return list(shipped_scenarios())


ScenarioArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="Scenario file, or the name of a shipped scenario such as paper-cifar10.",
        autocompletion=complete_scenario,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a value, such as radio.bandwidth_hz=360e3. Repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonOrFilesOption = Annotated[bool, typer.Option("--json", help="Print JSON, and write files only with --out.")]
ChainArgument = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a run, or of a chain.")]
ClientArgument = Annotated[int, typer.Argument(metavar="CLIENT", min=0, help="Number of a client.")]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Number of rounds.", show_default="the scenario's")]
SchedulerOption = Annotated[
    str | None, typer.Option("--scheduler", help="Such as drc or exact:tradeoff=50.", show_default="the scenario's")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", help="Seed, or the first of several.", show_default="the scenario's")
]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SOURCE",
        help="Training data: digits, a folder, .npz, hub:NAME or module:function.",
        show_default="the scenario's",
    ),
]
FlowerOption = Annotated[
    str | None,
    typer.Option("--flower", metavar="MODULE:NAME", help="Train with this Flower client, a client_fn or a ClientApp."),
]
FlowerModelOption = Annotated[
    str | None,
    typer.Option(
        "--flower-model",
        metavar="MODULE:NAME",
        help="Function or class that makes the Flower client's first model, such as its Net.",
        show_default="get_parameters of the client",
    ),
]
SeedsOption = Annotated[int, typer.Option("--seeds", help="Number of seeds.")]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", help="Number of processes. Does not change results.", show_default="one per core"),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="MODULE:FUNCTION", help="Let this function, which the file or folder names, run. Repeatable."
    ),
]
OwnKeyOption = Annotated[Path, typer.Option("--key", metavar="FILE", help="Your key, from `bdfl keygen`.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder for figures and CSV files.", show_default="results")
]


def open_scenario(
    name_or_path: str,
    changes: list[str] | None,
    rounds: int | None = None,
    seed: int | None = None,
    data: str | None = None,
    flower: str | None = None,
    flower_model: str | None = None,
) -> "Scenario":
    """Load a scenario and apply the options that override its values."""
    from bdfl.scenario import load_scenario
    from bdfl.scenario.files import find_scenario

    overrides = [*flower_changes(flower, flower_model), *(changes or [])]
    overrides += [] if rounds is None else [f"rounds={rounds}"]
    overrides += [] if seed is None else [f"seed={seed}"]
    return load_scenario(find_scenario(name_or_path), overrides + data_changes(data))


def data_changes(data: str | None) -> list[str]:
    """Return the overrides of the option `--data`; a path is relative to the working folder."""
    from bdfl.scenario.schema_learning import is_path

    if data is None:
        return []
    source = str(Path(data).absolute()) if is_path(data) else data
    return [f"data.source={toml_value(source)}"]


def flower_changes(flower: str | None, model: str | None) -> list[str]:
    """Return the overrides of `--flower` and `--flower-model`; no gradients, which a Flower client does not return."""
    named = [
        f"learning.{key}={toml_value(name)}" for key, name in (("flower", flower), ("flower_model", model)) if name
    ]
    return [*named, "learning.gradient_every=0"] if flower else named


def can_draw() -> bool:
    """Return whether Matplotlib is installed; if not, say on stderr that figures are left out."""
    try:
        require("no figures: drawing", "matplotlib")
    except MissingExtra as missing:
        typer.echo(missing, err=True)
        return False
    return True


def save_result(picture: "Picture", name: str, out: Path | None, *, quiet: bool) -> None:
    """Write a picture and its numbers into `out`, else into `results`, and print the file names unless `quiet`."""
    from bdfl.report.style import save_picture

    folder = out or RESULTS
    with writing_to(folder):
        files = save_picture(picture, folder, name)
    if not quiet:
        print_files(files)


# Chains in folders.


class NoChain(BdflError):
    """A folder without a chain, or without a file that a command on it needs."""


def find_chain(path: Path) -> Path:
    """Return the folder of the chain: that of a run, or the given one itself."""
    from bdfl.ledger.sqlite_store import DATABASE_FILE

    for folder in (path / "chain", path):
        if (folder / DATABASE_FILE).is_file():
            return folder
    if not path.exists():
        raise NoChain(f"{path}: not there, the folder of a run or of a chain expected")
    raise NoChain(f"{path}: no chain in it, the folder of a run or of a chain expected")


def open_chain(path: Path) -> "ChainStore":
    """Open a chain read-only; another process may be writing it."""
    from bdfl.ledger.sqlite_store import ChainStore

    return ChainStore.open(find_chain(path), read_only=True)


# Options of commands that distribute work over local processes or a Ray cluster.


class Engine(StrEnum):
    """The executor of the work; results do not depend on it."""

    LOCAL = "local"
    RAY = "ray"


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
    """Raise `BadUsage` for an address without the Ray engine."""
    if address is not None and engine is not Engine.RAY:
        raise BadUsage("--address: given with --engine local, --engine ray expected")
