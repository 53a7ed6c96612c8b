"""The subcommands. Libraries are imported where they are used: `bdfl --help` must not wait for matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl import __version__
from bdfl.cli import chain_audit, chain_privacy  # noqa: F401 (commands of chain_app)
from bdfl.cli.access_point import access_point
from bdfl.cli.chain import chain_app
from bdfl.cli.crowd import show_crowd
from bdfl.cli.data import data_app
from bdfl.cli.explore import explore
from bdfl.cli.export import export
from bdfl.cli.genesis import genesis_app
from bdfl.cli.keygen import keygen
from bdfl.cli.leaderboard import leaderboard
from bdfl.cli.member import member_app
from bdfl.cli.network import network_app
from bdfl.cli.node import node_app
from bdfl.cli.options import (
    JsonOption,
    JsonOrFilesOption,
    OutOption,
    RoundsOption,
    ScenarioArgument,
    SeedOption,
    SeedsOption,
    SetOption,
    WorkersOption,
    can_draw,
    open_scenario,
    save_result,
)
from bdfl.cli.poison import poison
from bdfl.cli.reproduce import reproduce
from bdfl.cli.run import report, run
from bdfl.cli.sweep import plot, sweep
from bdfl.cli.terminal import (
    OneLineErrors,
    print_files,
    print_json,
    print_out,
    progress,
    read_input,
    writing_to,
)
from bdfl.cli.track import TrackOption, open_trackers, track, tracking_scenario

if TYPE_CHECKING:
    from bdfl.records import RoundRecord

MAX_DRAWN_ROUNDS = 20_000  # of a simulated run whose records are written: a figure of more shows nothing

app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Decentralised federated learning over wireless with a chain of its own: schedule, simulate, train, run live.",
)
scenario_app = typer.Typer(no_args_is_help=True, help="Look at scenarios.")
schedulers_app = typer.Typer(invoke_without_command=True)
app.add_typer(scenario_app, name="scenario")
app.add_typer(data_app, name="data")
app.add_typer(chain_app, name="chain")
app.add_typer(schedulers_app, name="schedulers")
app.add_typer(genesis_app, name="genesis")
app.add_typer(member_app, name="member")
app.add_typer(node_app, name="node")
app.add_typer(network_app, name="network")
app.command("ap")(access_point)
app.command()(run)
app.command()(report)
app.command()(explore)
app.command()(export)
app.command()(track)
app.command()(poison)
app.command()(leaderboard)
app.command()(sweep)
app.command()(plot)
app.command()(keygen)


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
    """Options of the command itself."""


@app.command()
def solve(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM.json", help="A round's problem, or - for standard input.")],
    scheduler: Annotated[str, typer.Option("--scheduler", help="Any name that `bdfl schedulers` lists.")] = "exact",
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", metavar="KEY=VALUE", help="The scheduler's own. Repeatable.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="A table for people instead of JSON.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output, as it is anyway.")] = False,
) -> None:
    """Decide one round: who trains, at which frequencies and powers, with a proven gap.

    Examples:

      bdfl solve round.json --scheduler exact

      bdfl solve - --scheduler drc < round.json
    """
    from bdfl.experiment.choices import parse_parameters
    from bdfl.experiment.solving import decode_problem
    from bdfl.experiment.solving import solve as solve_problem

    answer = solve_problem(decode_problem(read_input(problem)), scheduler, parse_parameters(parameter or []))
    if table and not as_json:
        from bdfl.report.tables import tabulate_answer

        print_out(tabulate_answer(answer, scheduler))
    else:
        print_json(answer)


@app.command()
def simulate(
    scenario: ScenarioArgument,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="Such as drc or exact:tradeoff=50; the scenario's unless given.")
    ] = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    gaps: Annotated[bool, typer.Option(help="Prove every round's gap, with exact where the scheduler cannot.")] = True,
    sums: Annotated[
        bool | None,
        typer.Option(
            help="Keep the sums of each client over all rounds, not all it did; by itself beyond 20,000 clients."
        ),
    ] = None,
    changes: SetOption = None,
    out: OutOption = None,
    trackers: TrackOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Play one run and show who trained when, delays, energies and queues of every round.

    With --out the folder also gets the scenario and the records (Parquet): bdfl explore FOLDER shows them in a browser.

    Examples:

      bdfl simulate paper-cifar10

      bdfl simulate my.toml --scheduler exact:tradeoff=50 --set energy.budget_j=0.8 --out results/mine

      bdfl simulate million --no-gaps
    """
    from bdfl.experiment import simulate as simulate_scenario
    from bdfl.experiment.choices import choose_scheduler
    from bdfl.experiment.crowd import is_crowd
    from bdfl.experiment.record_folder import refuse_run_folder, write_record
    from bdfl.records import encode_run

    if out is not None:
        refuse_run_folder(out)
    played = open_scenario(scenario, changes, rounds, seed)
    played = played if scheduler is None else choose_scheduler(played, scheduler)
    opened = open_trackers(trackers)
    if is_crowd(played) if sums is None else sums:
        show_crowd(played, opened, gaps=gaps, out=out, as_json=as_json)
        return

    def on_round(row: "RoundRecord") -> None:
        on_progress(row.round, played.rounds)
        tracking.settle(row)

    with progress(f"simulating {played.name}", "rounds") as on_progress, tracking_scenario(opened, played) as tracking:
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
        from bdfl.report.run_figure import draw_run

        save_result(draw_run(record), f"simulate-{record.scenario}-{record.scheduler}", out, quiet=as_json)
    elif not is_drawn and not as_json:
        typer.echo(f"no figure of more than {MAX_DRAWN_ROUNDS} rounds; look at them: bdfl explore {out}")
    if as_json:
        print_json(encode_run(record))


@app.command()
def compare(
    scenario: ScenarioArgument,
    schedulers: Annotated[
        str | None,
        typer.Option(
            "--schedulers",
            help="Comma-separated; random,round-robin,channel-best,drc,exact:tradeoff=50 unless given.",
        ),
    ] = None,
    seeds: SeedsOption = 20,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="Differences are against it; the best baseline unless given.")
    ] = None,
    frontier: Annotated[bool, typer.Option(help="Also play over many V, for delay against shortfall.")] = True,
    bound: Annotated[bool, typer.Option(help="Also compute what no scheduler can beat.")] = True,
    workers: WorkersOption = None,
    changes: SetOption = None,
    out: OutOption = None,
    as_json: JsonOrFilesOption = False,
) -> None:
    """Play schedulers on the same draws and set their delays, fairness and energy side by side.

    Examples:

      bdfl compare paper-cifar10

      bdfl compare my.toml --schedulers random,drc,exact:tradeoff=50 --seeds 20 --rounds 100
    """
    from bdfl.experiment import compare as compare_schedulers
    from bdfl.experiment.choices import split_choices
    from bdfl.experiment.comparison import DEFAULT_SCHEDULERS, FRONTIER_TRADEOFFS

    played = open_scenario(scenario, changes, rounds, seed)
    choices = list(DEFAULT_SCHEDULERS) if schedulers is None else split_choices(schedulers)
    with progress(f"comparing on {played.name}", "seeds") as on_progress:
        comparison = compare_schedulers(
            played,
            choices,
            num_seeds=seeds,
            reference=reference,
            frontier_tradeoffs=FRONTIER_TRADEOFFS if frontier else (),
            with_bound=bound,
            workers=workers,
            on_progress=on_progress,
        )
    if as_json:
        print_json(comparison)
    else:
        from bdfl.report.tables import tabulate_comparison

        print_out(*tabulate_comparison(comparison))
    if (out is not None or not as_json) and can_draw():
        from bdfl.report.figures import draw_comparison

        save_result(draw_comparison(comparison), f"compare-{comparison.scenario}", out, quiet=as_json)


@app.command()
def bound(
    scenario: ScenarioArgument,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    changes: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute a lower bound on the mean delay of any scheduler that serves every client at its rate.

    Example:

      bdfl bound paper-cifar10 --rounds 500
    """
    from bdfl.experiment.bounding import bound_long_run
    from bdfl.report.tables import tabulate_bound

    bounded = open_scenario(scenario, changes, rounds, seed)
    with progress(f"bounding {bounded.name}", "rounds solved") as on_progress:
        found = bound_long_run(bounded, on_progress=on_progress)
    if as_json:
        print_json(found)
    else:
        print_out(*tabulate_bound(found))


app.command()(reproduce)


@scenario_app.command("show")
def show_scenario(
    scenario: ScenarioArgument,
    changes: SetOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="What each key means, instead of default and source.")
    ] = False,
    toml: Annotated[bool, typer.Option("--toml", help="A complete scenario file instead of a table.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print every value of a scenario with unit, default and source (paper, calibrated, ours).

    Examples:

      bdfl scenario show paper-cifar10

      bdfl scenario show minimal --toml > mine.toml
    """
    from bdfl.scenario import describe_scenario, dump_scenario

    loaded = open_scenario(scenario, changes)
    if as_json:
        print_json(describe_scenario(loaded))
    elif toml:
        typer.echo(dump_scenario(loaded), nl=False)
    else:
        from bdfl.report.tables import tabulate_scenario

        print_out(tabulate_scenario(loaded.name, describe_scenario(loaded), with_meaning=explain))


@scenario_app.command("list")
def list_scenarios(as_json: JsonOption = False) -> None:
    """List the scenarios that come with bdfl.

    Example:

      bdfl scenario list
    """
    from bdfl.report.tables import new_table
    from bdfl.scenario import load_scenario
    from bdfl.scenario.shipped import shipped_scenarios

    described = {name: load_scenario(path).description for name, path in shipped_scenarios().items()}
    if as_json:
        print_json(described)
        return
    table = new_table("Shipped scenarios", ("name", "what it is"), text_columns=2)
    for name, description in described.items():
        table.add_row(name, description)
    print_out(table)


@schedulers_app.callback()
def list_schedulers(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the installed schedulers with their parameters, ours and third parties', or check one.

    Examples:

      bdfl schedulers

      bdfl schedulers check exact
    """
    if context.invoked_subcommand is not None:
        return
    from bdfl.report.tables import new_table
    from bdfl.scheduling.registry import scheduler_names, scheduler_parameters

    parameters = {name: scheduler_parameters(name) for name in scheduler_names()}
    if as_json:
        print_json(parameters)
        return
    table = new_table("Installed schedulers", ("name", "parameters, with their defaults"), text_columns=2)
    for name, settings in parameters.items():
        table.add_row(name, "\n".join(settings) or "-")
    print_out(table)


@schedulers_app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="A scheduler that `bdfl schedulers` lists.")],
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Random and extreme rounds to try it on.")] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of those rounds.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Judge a scheduler on random and extreme rounds; exit code 1 if it did anything wrong.

    Example:

      bdfl schedulers check drc --rounds 1000
    """
    from bdfl.scheduling.registry import check_scheduler, get_scheduler

    scheduler = get_scheduler(name)
    with progress(f"checking {name}", "rounds") as on_progress:
        report = check_scheduler(scheduler, num_rounds=rounds, seed=seed, on_progress=on_progress)
    if as_json:
        print_json(report)
    else:
        typer.echo(f"{name}: {report}")
    if not report.ok:
        raise typer.Exit(1)
