"""Options, arguments and steps that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.terminal import print_files, writing_to
from bdfl.errors import MissingExtra, require
from bdfl.scenario.toml_text import toml_value

if TYPE_CHECKING:
    from bdfl.report.style import Picture
    from bdfl.scenario import Scenario

RESULTS = Path("results")


def complete_scenario() -> list[str]:
    """What a shell offers where a scenario is asked for: the shipped ones; it adds files where none of them fits."""
    from bdfl.scenario.shipped import shipped_scenarios

    return list(shipped_scenarios())


ScenarioArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file, or the name of a shipped one such as paper-cifar10.",
        autocompletion=complete_scenario,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, such as radio.bandwidth_hz=360e3. Repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output, for machines.")]
JsonOrFilesOption = Annotated[
    bool, typer.Option("--json", help="JSON on standard output, for machines; files only with --out.")
]
RoundsOption = Annotated[int | None, typer.Option("--rounds", help="Rounds to play; the scenario's unless given.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="The (first) seed; the scenario's unless given.")]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="SOURCE", help="Learn from this: digits, a folder, .npz, hub:NAME or module:function."
    ),
]
FlowerOption = Annotated[
    str | None,
    typer.Option(
        "--flower", metavar="MODULE:NAME", help="Learn with this Flower client, a client_fn or a ClientApp, as it is."
    ),
]
FlowerModelOption = Annotated[
    str | None,
    typer.Option(
        "--flower-model",
        metavar="MODULE:NAME",
        help="What makes the Flower client's model, such as its Net; unless it has get_parameters.",
    ),
]
SeedsOption = Annotated[int, typer.Option("--seeds", help="Number of seeds.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", help="Processes; one per core unless given. Results do not depend on it.")
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="MODULE:FUNCTION", help="A function named there that may run here. Repeatable."),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Folder for figures and CSV files, results unless given.")
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
    """The scenario asked for, with what the options change."""
    from bdfl.scenario import load_scenario
    from bdfl.scenario.shipped import find_scenario

    overrides = [*flower_changes(flower, flower_model), *(changes or [])]
    overrides += [] if rounds is None else [f"rounds={rounds}"]
    overrides += [] if seed is None else [f"seed={seed}"]
    return load_scenario(find_scenario(name_or_path), overrides + data_changes(data))


def data_changes(data: str | None) -> list[str]:
    """What the option `--data` changes in a scenario; a path is relative to the working folder."""
    from bdfl.scenario.learning import is_path

    if data is None:
        return []
    source = str(Path(data).absolute()) if is_path(data) else data
    return [f"data.source={toml_value(source)}"]


def flower_changes(flower: str | None, model: str | None) -> list[str]:
    """What the options `--flower` and `--flower-model` change; gradients are something no Flower client gives."""
    named = [
        f"learning.{key}={toml_value(name)}" for key, name in (("flower", flower), ("flower_model", model)) if name
    ]
    return [*named, "learning.gradient_every=0"] if flower else named


def can_draw() -> bool:
    """Tells if Matplotlib is installed; where it is not, says on stderr that figures are left out."""
    try:
        require("no figures: drawing", "matplotlib")
    except MissingExtra as missing:
        typer.echo(missing, err=True)
        return False
    return True


def save_result(picture: "Picture", name: str, out: Path | None, *, quiet: bool) -> None:
    """Writes a picture with its numbers into `out`, or where results go, and says so unless told to be quiet."""
    from bdfl.report.style import save_picture

    folder = out or RESULTS
    with writing_to(folder):
        files = save_picture(picture, folder, name)
    if not quiet:
        print_files(files)
