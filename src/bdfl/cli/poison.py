"""`bdfl poison`: aggregation rules against members that poison the model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import (
    RESULTS,
    JsonOrFilesOption,
    OutOption,
    RoundsOption,
    SeedOption,
    SetOption,
    WorkersOption,
    open_scenario,
)
from bdfl.cli.terminal import print_files, print_json, print_out, progress, writing_to

if TYPE_CHECKING:
    from bdfl.experiment.poisoning import Poisoning

_NAME = "poisoning"


def poison(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="Scenario file with adversaries, or a shipped scenario.")
    ] = _NAME,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds.")] = 5,
    rules: Annotated[
        str | None,
        typer.Option("--rules", help="Comma-separated, such as median,my_rules:trust.", show_default="all"),
    ] = None,
    attacks: Annotated[
        str | None,
        typer.Option("--attacks", help="Comma-separated, such as label-flip,scaling:20.", show_default="all"),
    ] = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    workers: WorkersOption = None,
    changes: SetOption = None,
    out: OutOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Compare aggregation rules under poisoning attacks.

    Trains every rule against every attack, on even and on skewed data. The scenario defines the adversaries. Writes a
    figure, tables and every run's accuracy.

    Examples:
      bdfl poison
      bdfl poison --attacks sign-flip:4,gaussian:50 --rules mean,median --seeds 3
      bdfl poison my.toml --seeds 10 --out results/poisoning
    """
    from bdfl.experiment.poisoning import ATTACKS, RULES, parse_attacks, play_poisoning

    played = open_scenario(scenario, changes, rounds, seed)
    chosen_attacks = ATTACKS if attacks is None else parse_attacks(attacks)
    chosen_rules = RULES if rules is None else [name.strip() for name in rules.split(",") if name.strip()]
    with progress(f"poisoning {played.name}", "tasks") as on_progress:
        found = play_poisoning(
            played,
            attacks=chosen_attacks,
            rules=chosen_rules,
            num_seeds=seeds,
            workers=workers,
            on_progress=on_progress,
        )
    if as_json:
        print_json(found)
    else:
        from bdfl.report.poisoning import tabulate_poisoning

        print_out(*tabulate_poisoning(found))
    if out is not None or not as_json:
        files = _save(found, out or RESULTS)
        if not as_json:
            print_files(files)


def _save(found: "Poisoning", folder: Path) -> list[Path]:
    from bdfl.report.poisoning import draw_poisoning, write_poisoning_markdown
    from bdfl.report.style import save_picture

    with writing_to(folder):
        files = save_picture(draw_poisoning(found), folder, _NAME)
        page = folder / f"{_NAME}.md"
        page.write_text(write_poisoning_markdown(found, _made_with()), encoding="utf-8")
    return [*files, page]


def _made_with() -> list[str]:
    """Return the command line, and the versions that determine the numbers."""
    import platform
    import shlex
    import sys
    from importlib.metadata import version

    from bdfl import __version__

    return [
        f"`bdfl {shlex.join(sys.argv[1:])}`",
        f"bdfl {__version__}, Python {platform.python_version()}, torch {version('torch')}, numpy {version('numpy')}",
    ]
