"""`bdfl leaderboard`, `bdfl poison` and `bdfl reproduce`: studies that end in a page with tables and figures."""

import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bdfl import __version__
from bdfl.cli.options import (
    RESULTS,
    AddressOption,
    Engine,
    EngineOption,
    JsonOption,
    JsonOrFilesOption,
    OutOption,
    RoundsOption,
    SeedOption,
    SetOption,
    WorkersOption,
    can_draw,
    open_scenario,
    validate_address,
)
from bdfl.cli.terminal import (
    INTERRUPTED_EXIT,
    BadUsage,
    describe_machine,
    print_files,
    print_json,
    print_out,
    progress,
    show_result,
    writing_to,
)
from bdfl.errors import require

if TYPE_CHECKING:
    from bdfl.experiment.leaderboard import Leaderboard
    from bdfl.experiment.robustness import Poisoning
    from bdfl.reproduce import CampaignProgress, Reproduction, TrainingSettings


# `bdfl leaderboard`: all schedulers on the same rounds, as a page.

DEFAULT_SCENARIOS = ("paper-cifar10", "mixed")
_LEADERBOARD = "leaderboard"


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
    from bdfl.experiment.leaderboard import play_leaderboard
    from bdfl.report.leaderboard import tabulate_board
    from bdfl.scheduling.registry import split_choices

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
    show_result(boards, lambda: (table for board in boards for table in tabulate_board(board)), as_json=as_json)
    if (out is not None or not as_json) and can_draw():
        files = _save_leaderboard(boards, out or RESULTS / _LEADERBOARD)
        if not as_json:
            print_files(files)


def _save_leaderboard(boards: "list[Leaderboard]", folder: Path) -> list[Path]:
    from bdfl.report.leaderboard import draw_board, file_name, write_leaderboard_html, write_leaderboard_markdown
    from bdfl.report.style import save_picture

    made_with = [_command_line(), describe_machine()]
    pictures = [draw_board(board) for board in boards]
    with writing_to(folder):
        files: list[Path] = []
        for board, picture in zip(boards, pictures, strict=True):
            files += save_picture(picture, folder, file_name(board))
        page, site = folder / f"{_LEADERBOARD}.html", folder / "README.md"
        page.write_text(write_leaderboard_html(boards, pictures, made_with), encoding="utf-8")
        site.write_text(write_leaderboard_markdown(boards, made_with), encoding="utf-8")
    return [*files, page, site]


def _command_line() -> str:
    return f"`bdfl {shlex.join(sys.argv[1:])}`"


# `bdfl poison`: aggregation rules against members that poison the model.

_POISONING = "poisoning"


def poison(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="Scenario file with adversaries, or a shipped scenario.")
    ] = _POISONING,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds.")] = 5,
    rules: Annotated[
        str | None, typer.Option("--rules", help="Comma-separated, such as median,my_rules:trust.", show_default="all")
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
    from bdfl.experiment.robustness import ATTACKS, RULES, parse_attacks, play_poisoning

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
        from bdfl.report.robustness import tabulate_poisoning

        print_out(*tabulate_poisoning(found))
    if out is not None or not as_json:
        files = _save_poisoning(found, out or RESULTS)
        if not as_json:
            print_files(files)


def _save_poisoning(found: "Poisoning", folder: Path) -> list[Path]:
    from bdfl.report.robustness import draw_poisoning, write_poisoning_markdown
    from bdfl.report.style import save_picture

    with writing_to(folder):
        files = save_picture(draw_poisoning(found), folder, _POISONING)
        page = folder / f"{_POISONING}.md"
        page.write_text(write_poisoning_markdown(found, [_command_line(), _versions()]), encoding="utf-8")
    return [*files, page]


def _versions() -> str:
    """Return the versions that determine the numbers."""
    from importlib.metadata import version  # here: slow to import

    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy"))
    return f"bdfl {__version__}, Python {platform.python_version()}, {packages}"


# `bdfl reproduce`: the paper's figures and times in seconds, its accuracies in hours, with progress.

_PATIENCE_S = 2.0  # between plain lines
_SEEDS, _TRAINED_SEEDS = 20, 3
_QUICK_ROUNDS = 3
_NEWEST = "steady"  # trained beside the paper's schedulers and `exact`


def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="fig2, fig3, fig4, table4 or all.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="DIR", help="Train for table4: folders cifar10 and svhn of Parquet files, or one of them."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds.", show_default="20, or 3 with --data")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="With --data: rounds to train.", show_default="the paper's")
    ] = None,
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", help="With --data: local epochs (or updates) trained in a round.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option("--unit", help="With --data: unit of local steps, epochs or updates.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="With --data: samples in a mini-batch.")] = None,
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="With --data: rounds between evaluations.")
    ] = None,
    schedulers: Annotated[
        str | None, typer.Option("--schedulers", help="With --data: comma-separated, such as drc,exact:tradeoff=50.")
    ] = None,
    only: Annotated[str | None, typer.Option("--only", help="With --data: only cifar10 or svhn.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="With --data: table4, literal (the paper's own settings), none or a TOML file.",
            show_default="table4",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="With --data: a trial of a few rounds and one seed.")] = False,
    changes: SetOption = None,
    workers: WorkersOption = None,
    engine: EngineOption = Engine.LOCAL,
    address: AddressOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reproduce the paper's figures and table, beside the paper's numbers.

    Without --data nothing is trained, and table4 has times only.

    With --data every run is trained in its own folder below OUT/runs, by a recipe that reaches the paper's accuracies.
    The same command again resumes what was stopped and reuses what is finished. Schedulers that choose the same clients
    are trained once. Simulated time does not depend on the amount of training. The output lists all that is not as in
    the paper, with the reason.

    Examples:
      bdfl reproduce table4
      bdfl reproduce all --out results
      bdfl reproduce table4 --data images --quick
      bdfl reproduce table4 --data images --schedulers drc --recipe literal
    """
    require("reproducing the paper", "matplotlib")
    from bdfl.reproduce import Settings, Target, parse_targets, reproduce as reproduce_target

    targets = parse_targets(what)
    validate_address(engine, address)
    if quick:
        seeds, rounds = seeds or 1, rounds or _QUICK_ROUNDS
    named = {
        "rounds": rounds,
        "learning.local_steps": local_steps,
        "learning.unit": unit,
        "learning.batch": batch,
        "learning.evaluate_every": evaluate_every,
    }
    overrides = [*(changes or []), *(f"{key}={value}" for key, value in named.items() if value is not None)]
    options = {
        "--schedulers": schedulers, "--only": only, "--recipe": recipe, "--quick": quick or None, "--address": address
    }  # fmt: skip
    given = [*overrides, *(name for name, value in options.items() if value is not None)]
    if data is None and given:
        needs = "which needs --data DIR: without it the shipped scenarios are played"
        raise BadUsage(f"reproduce: {given[0]} given, {needs}")
    if data is not None and Target.TABLE4 not in targets:
        raise BadUsage("reproduce: --data given, which is for table4: figures 2 to 4 need no training")
    training = None
    if data is not None:
        from bdfl.reproduce import TrainingSettings
        from bdfl.reproduce.results import TRAINED_SCHEDULERS
        from bdfl.scheduling.registry import split_choices

        training = TrainingSettings(
            data=data,
            num_seeds=_TRAINED_SEEDS if seeds is None else seeds,
            schedulers=(*TRAINED_SCHEDULERS, _NEWEST) if schedulers is None else tuple(split_choices(schedulers)),
            only=only,
            recipe=None if recipe == "none" else recipe or "table4",
            beside="literal" if recipe is None and schedulers is None else None,
            overrides=tuple(overrides),
            workers=workers,
            on_ray=engine is Engine.RAY,
            address=address,
        )
    folder = out or RESULTS
    num_seeds = _SEEDS if seeds is None else seeds
    found = []
    for target in targets:
        with writing_to(folder):
            if training is not None and target is Target.TABLE4:
                found.append(_train(folder, training))
            else:
                with progress(f"reproducing {target.value}", "tasks") as on_progress:
                    found.append(reproduce_target(target, Settings(folder, num_seeds, workers, on_progress)))
        if not as_json:
            _print(found[-1])
    if as_json:
        print_json(found)


def _train(folder: Path, training: "TrainingSettings") -> "Reproduction":
    from dataclasses import replace

    from bdfl.reproduce import Settings, Target, reproduce as reproduce_target

    view = CampaignView()
    try:
        with show_campaign(view) as on_progress:
            watched = replace(training, on_progress=on_progress)
            return reproduce_target(Target.TABLE4, Settings(folder, training=watched))
    except KeyboardInterrupt:
        typer.echo(
            f"stopped {view.place()}; the same command goes on from there, its runs are in {folder / 'runs'}", err=True
        )
        raise typer.Exit(INTERRUPTED_EXIT) from None


class CampaignView:
    """Progress of the campaign, with time left estimated from the mean duration of a round."""

    def __init__(self) -> None:
        self.last: CampaignProgress | None = None
        self._started_s = time.monotonic()

    def left_s(self) -> float:
        """Return the estimated seconds left for all runs; NaN before the first round."""
        if self.last is None:
            return float("nan")
        return (time.monotonic() - self._started_s) / self.last.rounds_trained * self.last.rounds_left

    def line(self) -> str:
        """Return run, round, accuracy and time left in one line."""
        from bdfl.node.status import show_duration

        if self.last is None:
            return "preparing"
        accuracy = "" if self.last.accuracy is None else f", accuracy {100 * self.last.accuracy:.1f} %"
        return (
            f"run {self.last.run} of {self.last.num_runs} ({self.last.title}): round {self.last.round} of"
            f" {self.last.rounds}{accuracy}, {show_duration(self.left_s())} left for all"
        )

    def place(self) -> str:
        """Return the last finished round, for the message of an interrupted campaign."""
        if self.last is None:
            return "before the first round was over"
        return f"in run {self.last.run} of {self.last.num_runs} ({self.last.title}) after round {self.last.round}"


@contextmanager
def show_campaign(view: CampaignView) -> Iterator[Callable[["CampaignProgress"], None]]:
    """Yield a function that shows progress on stderr: a live line on a terminal, else plain lines."""
    console = Console(stderr=True, highlight=False)
    said_s = time.monotonic()
    with console.status(view.line()) if console.is_terminal else nullcontext() as status:

        def show(now: "CampaignProgress") -> None:
            nonlocal said_s
            view.last = now
            if status is not None:
                status.update(view.line())
            elif time.monotonic() - said_s >= _PATIENCE_S or now.rounds_left == 0:
                said_s = time.monotonic()
                typer.echo(view.line(), err=True)

        yield show


def _print(found: "Reproduction") -> None:
    from bdfl.report.tables import tabulate_numbers, tabulate_verdicts

    tables = [tabulate_numbers(table.title, table.header, table.rows) for table in found.tables]
    verdicts = [(verdict.claim, verdict.holds, verdict.found) for verdict in found.verdicts]
    calibrated = f"Calibrated, not in the paper: {', '.join(found.calibrated)}."
    print_out(*found.notes, *tables, tabulate_verdicts(verdicts), calibrated)
    print_files([Path(file) for file in found.files])
