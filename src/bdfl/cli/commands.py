"""Registration of all commands. Libraries are imported in functions: `bdfl --help` must not wait for matplotlib."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bdfl import __version__
from bdfl.cli.chain import chain_app
from bdfl.cli.data import TrackOption, data_app, export, open_trackers, track, tracking_scenario
from bdfl.cli.explore import explore
from bdfl.cli.genesis import genesis_app
from bdfl.cli.member import keygen, member_app
from bdfl.cli.network import network_app
from bdfl.cli.node import access_point, node_app
from bdfl.cli.options import (
    JsonOption,
    JsonOrFilesOption,
    OutOption,
    RoundsOption,
    ScenarioArgument,
    SchedulerOption,
    SeedOption,
    SeedsOption,
    SetOption,
    WorkersOption,
    can_draw,
    open_scenario,
    save_result,
)
from bdfl.cli.run import report, run
from bdfl.cli.studies import leaderboard, poison, reproduce
from bdfl.cli.sweep import plot, sweep
from bdfl.cli.terminal import (
    OneLineErrors,
    print_files,
    print_json,
    print_out,
    progress,
    read_input,
    show_result,
    writing_to,
)

if TYPE_CHECKING:
    from bdfl.records import RoundRecord
    from bdfl.scenario import Scenario
    from bdfl.tracking import Tracker

MAX_DRAWN_ROUNDS = 20_000  # of a run with records; a figure of more rounds is unreadable


class _Panels(OneLineErrors):
    """The top-level commands in the order of their help panels."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for commands in _PANELS.values() for name in commands]


app = typer.Typer(
    cls=_Panels,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Schedule, simulate, train and run federated learning over wireless networks, on a chain of its own.",
)
scenario_app = typer.Typer(no_args_is_help=True, help="Show scenarios and list the shipped ones.")
schedulers_app = typer.Typer(invoke_without_command=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bdfl {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `bdfl` itself."""


def solve(
    problem: Annotated[
        str, typer.Argument(metavar="PROBLEM.json", help="The problem of a round, or - for standard input.")
    ],
    scheduler: Annotated[str, typer.Option("--scheduler", help="A scheduler that `bdfl schedulers` lists.")] = "exact",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", metavar="KEY=VALUE", help="Set a parameter of the scheduler. Repeatable."),
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Print a table instead of JSON.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (the default).")] = False,
) -> None:
    """Schedule one round: clients, frequencies and powers, with a proven gap.

    Examples:
      bdfl solve round.json --scheduler exact
      bdfl solve - --scheduler drc < round.json
    """
    from bdfl.experiment.simulation import decode_problem, solve as solve_problem
    from bdfl.report.tables import tabulate_answer
    from bdfl.scheduling.registry import parse_parameters

    answer = solve_problem(decode_problem(read_input(problem)), scheduler, parse_parameters(parameter or []))
    show_result(answer, lambda: [tabulate_answer(answer, scheduler)], as_json=as_json or not table)


def simulate(
    scenario: ScenarioArgument,
    scheduler: SchedulerOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    gaps: Annotated[
        bool, typer.Option(help="Prove every round's optimality gap, with exact where the scheduler cannot.")
    ] = True,
    sums: Annotated[
        bool | None,
        typer.Option(
            help="Keep each client's sums over all rounds, not its values of every round.",
            show_default="sums above 20,000 clients",
        ),
    ] = None,
    changes: SetOption = None,
    out: OutOption = None,
    trackers: TrackOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Simulate a scenario and show clients, delays, energies and queues by round.

    With --out, the folder also gets the scenario and the records (Parquet). `bdfl explore FOLDER` shows them in a
    browser.

    Examples:
      bdfl simulate paper-cifar10
      bdfl simulate my.toml --scheduler exact:tradeoff=50 --out results/mine
      bdfl simulate my.toml --set energy.budget_j=0.8
      bdfl simulate million --no-gaps
    """
    from bdfl.experiment import simulate as simulate_scenario
    from bdfl.experiment.run_folder import refuse_run_folder, write_record
    from bdfl.experiment.simulation import is_aggregated
    from bdfl.records import encode_run
    from bdfl.scheduling.registry import choose_scheduler

    if out is not None:
        refuse_run_folder(out)
    played = open_scenario(scenario, changes, rounds, seed)
    played = played if scheduler is None else choose_scheduler(played, scheduler)
    opened = open_trackers(trackers)
    if is_aggregated(played) if sums is None else sums:
        _show_aggregate(played, opened, gaps=gaps, out=out, as_json=as_json)
        return

    with _simulating(played, opened) as on_round:
        record = simulate_scenario(played, prove_gaps=gaps, on_round=on_round)
    if not as_json:
        from bdfl.report.tables import tabulate_run

        print_out(*tabulate_run(record))
    files: list[Path] = []
    if out is not None:
        with writing_to(out):
            files = write_record(played, record, out)
        if not as_json:
            print_files(files)
    is_drawn = played.rounds <= MAX_DRAWN_ROUNDS or not any(path.suffix == ".parquet" for path in files)
    if is_drawn and (out is not None or not as_json) and can_draw():
        from bdfl.report.run_figures import draw_run

        save_result(draw_run(record), f"simulate-{record.scenario}-{record.scheduler}", out, quiet=as_json)
    elif not is_drawn and not as_json:
        typer.echo(f"no figure of more than {MAX_DRAWN_ROUNDS} rounds; look at them: bdfl explore {out}")
    if as_json:
        print_json(encode_run(record))


@contextmanager
def _simulating(scenario: "Scenario", trackers: "Mapping[str, Tracker]") -> "Iterator[Callable[[RoundRecord], None]]":
    """Yield a function that shows progress after every round, and tracks it."""

    def settle(row: "RoundRecord") -> None:
        on_progress(row.round, scenario.rounds)
        tracking.settle(row)

    with (
        progress(f"simulating {scenario.name}", "rounds") as on_progress,
        tracking_scenario(trackers, scenario) as tracking,
    ):
        yield settle


def _show_aggregate(
    scenario: "Scenario", trackers: "Mapping[str, Tracker]", *, gaps: bool, out: Path | None, as_json: bool
) -> None:
    """Simulate the scenario, print tables or JSON, and write the records into `out` if given."""
    from bdfl.experiment.run_folder import write_record
    from bdfl.experiment.simulation import simulate_aggregate
    from bdfl.records import encode_aggregate

    with _simulating(scenario, trackers) as on_round:
        record = simulate_aggregate(scenario, prove_gaps=gaps, on_round=on_round)
    if as_json:
        print_json(encode_aggregate(record))
    else:
        from bdfl.report.tables import tabulate_crowd

        print_out(*tabulate_crowd(record))
    if out is not None:
        with writing_to(out):
            files = write_record(scenario, record, out)
        if not as_json:
            print_files(files)


def compare(
    scenario: ScenarioArgument,
    schedulers: Annotated[
        str | None,
        typer.Option(
            "--schedulers",
            help="Comma-separated.",
            show_default="random, round-robin and channel-best at both frequencies, drc, exact:tradeoff=50, steady",
        ),
    ] = None,
    seeds: SeedsOption = 20,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Scheduler to compare with.", show_default="the best baseline")
    ] = None,
    frontier: Annotated[bool, typer.Option(help="Also vary V and the energy budgets, for two frontiers.")] = True,
    bound: Annotated[bool, typer.Option(help="Also compute the lower bound of `bdfl bound`.")] = True,
    workers: WorkersOption = None,
    changes: SetOption = None,
    out: OutOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Compare the delay, fairness and energy of schedulers on the same random draws.

    Examples:
      bdfl compare paper-cifar10
      bdfl compare my.toml --schedulers drc,exact:tradeoff=50 --seeds 5
    """
    from bdfl.experiment import compare as compare_schedulers
    from bdfl.experiment.comparison import DEFAULT_SCHEDULERS, FRONTIER_BUDGETS, FRONTIER_TRADEOFFS
    from bdfl.report.tables import tabulate_comparison
    from bdfl.scheduling.registry import split_choices

    played = open_scenario(scenario, changes, rounds, seed)
    choices = list(DEFAULT_SCHEDULERS) if schedulers is None else split_choices(schedulers)
    with progress(f"comparing on {played.name}", "seeds") as on_progress:
        comparison = compare_schedulers(
            played,
            choices,
            num_seeds=seeds,
            reference=reference,
            frontier_tradeoffs=FRONTIER_TRADEOFFS if frontier else (),
            frontier_budgets=FRONTIER_BUDGETS if frontier else (),
            with_bound=bound,
            workers=workers,
            on_progress=on_progress,
        )
    show_result(comparison, lambda: tabulate_comparison(comparison), as_json=as_json)
    if (out is not None or not as_json) and can_draw():
        from bdfl.report.figures import draw_comparison

        save_result(draw_comparison(comparison), f"compare-{comparison.scenario}", out, quiet=as_json)


def bound(
    scenario: ScenarioArgument,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute a lower bound on the mean delay of any scheduler.

    It holds for every scheduler that serves each client at its participation rate.

    Example:
      bdfl bound paper-cifar10 --rounds 500
    """
    from bdfl.experiment.bounds import bound_long_run
    from bdfl.report.tables import tabulate_bound

    bounded = open_scenario(scenario, changes, rounds, seed)
    with progress(f"bounding {bounded.name}", "rounds solved") as on_progress:
        found = bound_long_run(bounded, on_progress=on_progress)
    show_result(found, lambda: tabulate_bound(found), as_json=as_json)


@scenario_app.command("show")
def show_scenario(
    scenario: ScenarioArgument,
    changes: SetOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the meaning of each key instead of default and source.")
    ] = False,
    toml: Annotated[bool, typer.Option("--toml", help="Print a complete scenario file instead of a table.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every value of a scenario with unit, default and source.

    The source is paper, calibrated or ours.

    Examples:
      bdfl scenario show paper-cifar10
      bdfl scenario show minimal --toml > mine.toml
    """
    from bdfl.report.tables import tabulate_scenario
    from bdfl.scenario import describe_scenario, dump_scenario

    loaded = open_scenario(scenario, changes)
    if toml and not as_json:
        typer.echo(dump_scenario(loaded), nl=False)
        return
    rows = describe_scenario(loaded)
    show_result(rows, lambda: [tabulate_scenario(loaded.name, rows, with_meaning=explain)], as_json=as_json)


@scenario_app.command("list")
def list_scenarios(as_json: JsonOption = False) -> None:
    """List the scenarios that come with bdfl.

    Example:
      bdfl scenario list
    """
    from bdfl.report.tables import new_table
    from bdfl.scenario import load_scenario
    from bdfl.scenario.files import shipped_scenarios

    described = {name: load_scenario(path).description for name, path in shipped_scenarios().items()}
    table = new_table("Shipped scenarios", ("name", "what it is"), described.items(), text_columns=2)
    show_result(described, lambda: [table], as_json=as_json)


@schedulers_app.callback()
def list_schedulers(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the installed schedulers with their parameters, or check one.

    Schedulers of other packages are listed too.

    Examples:
      bdfl schedulers
      bdfl schedulers check exact
    """
    if context.invoked_subcommand is not None:
        return
    from bdfl.report.tables import new_table
    from bdfl.scheduling.registry import scheduler_names, scheduler_parameters

    parameters = {name: scheduler_parameters(name) for name in scheduler_names()}
    rows = [(name, "\n".join(settings) or "-") for name, settings in parameters.items()]
    table = new_table("Installed schedulers", ("name", "parameters, with their defaults"), rows, text_columns=2)
    show_result(parameters, lambda: [table], as_json=as_json)


@schedulers_app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="A scheduler that `bdfl schedulers` lists, with parameters if any.")],
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds.")] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of those rounds.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Check the decisions of a scheduler on random and extreme rounds.

    Exit code 1 if one of them is wrong.

    Examples:
      bdfl schedulers check drc --rounds 1000
      bdfl schedulers check channel-best:frequencies=best
    """
    from bdfl.scheduling.registry import check_scheduler, find_scheduler

    scheduler = find_scheduler(name)
    with progress(f"checking {name}", "rounds") as on_progress:
        report = check_scheduler(scheduler, num_rounds=rounds, seed=seed, on_progress=on_progress)
    if as_json:
        print_json(report)
    else:
        typer.echo(f"{name}: {report}")
    if not report.ok:
        raise typer.Exit(1)


_PANELS: dict[str, dict[str, typer.Typer | Callable[..., None]]] = {
    "Simulate": {
        "simulate": simulate,
        "compare": compare,
        "bound": bound,
        "solve": solve,
        "schedulers": schedulers_app,
        "scenario": scenario_app,
    },
    "Train": {"run": run, "report": report, "data": data_app},
    "Chain": {"chain": chain_app},
    "Live network": {
        "network": network_app,
        "keygen": keygen,
        "genesis": genesis_app,
        "node": node_app,
        "ap": access_point,
        "member": member_app,
    },
    "Studies": {"reproduce": reproduce, "leaderboard": leaderboard, "poison": poison, "sweep": sweep, "plot": plot},
    "Inspect and export": {"explore": explore, "export": export, "track": track},
}
for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)
