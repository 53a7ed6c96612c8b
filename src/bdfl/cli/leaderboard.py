"""`bdfl leaderboard`: all schedulers on the same rounds, as a page."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import RESULTS, JsonOrFilesOption, RoundsOption, SetOption, WorkersOption, can_draw, open_scenario
from bdfl.cli.terminal import describe_machine, print_files, print_json, print_out, progress, writing_to

if TYPE_CHECKING:
    from bdfl.experiment.leaderboard import Board

DEFAULT_SCENARIOS = ("paper-cifar10", "mixed")
_NAME = "leaderboard"


def leaderboard(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO]...", help="Scenario files or shipped scenarios.", show_default="paper-cifar10 mixed"
        ),
    ] = None,
    schedulers: Annotated[
        str | None,
        typer.Option(
            "--schedulers", help="Comma-separated, such as drc,exact:tradeoff=50.", show_default="all installed"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds.")] = 10,
    rounds: RoundsOption = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Also train, for accuracies, if the data need no download.")
    ] = False,
    bound: Annotated[bool, typer.Option(help="Also compute the lower bound of `bdfl bound`.")] = True,
    workers: WorkersOption = None,
    changes: SetOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the page, figures and CSV.", show_default="results/leaderboard"),
    ] = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Rank all installed schedulers on the same rounds.

    Shows delay, energy, fairness and accuracy: means with 95 % intervals over seeds, and the proven lower bound. Only
    schedulers that serve every client get a rank.

    Examples:
      bdfl leaderboard --learn
      bdfl leaderboard my.toml --schedulers drc,oort,my-scheduler --seeds 20
    """
    from bdfl.experiment.choices import split_choices
    from bdfl.experiment.leaderboard import play_leaderboard

    opened = [open_scenario(name, changes, rounds) for name in scenarios or DEFAULT_SCENARIOS]
    with progress("playing the leaderboard", "seeds") as on_progress:
        boards = play_leaderboard(
            opened,
            None if schedulers is None else split_choices(schedulers),
            num_seeds=seeds,
            learn=learn,
            with_bound=bound,
            workers=workers,
            on_progress=on_progress,
        )
    if as_json:
        print_json(boards)
    else:
        from bdfl.report.leaderboard import tabulate_board

        print_out(*(table for board in boards for table in tabulate_board(board)))
    if (out is not None or not as_json) and can_draw():
        files = _save(boards, out or RESULTS / _NAME)
        if not as_json:
            print_files(files)


def _save(boards: "list[Board]", folder: Path) -> list[Path]:
    from bdfl.report.leaderboard import draw_board, file_name, write_leaderboard_html, write_leaderboard_markdown
    from bdfl.report.style import save_picture

    made_with = [f"`bdfl {shlex.join(sys.argv[1:])}`", describe_machine()]
    pictures = [draw_board(board) for board in boards]
    with writing_to(folder):
        files: list[Path] = []
        for board, picture in zip(boards, pictures, strict=True):
            files += save_picture(picture, folder, file_name(board))
        page, site = folder / f"{_NAME}.html", folder / "README.md"
        page.write_text(write_leaderboard_html(boards, pictures, made_with), encoding="utf-8")
        site.write_text(write_leaderboard_markdown(boards, made_with), encoding="utf-8")
    return [*files, page, site]
