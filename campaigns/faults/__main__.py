"""`python -m campaigns faults`: networks with injected faults, checked against invariants."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import JsonOption, WorkersOption
from bdfl.cli.terminal import OneLineErrors, print_files, print_json, print_out, progress, writing_to

if TYPE_CHECKING:
    from bdfl.scenario import QuorumRule
    from campaigns.faults.campaign import Campaign

app = typer.Typer(cls=OneLineErrors, rich_markup_mode="rich", invoke_without_command=True)

FirstOption = Annotated[int, typer.Option("--first", min=0, help="The first seed.")]


class QuorumChoice(StrEnum):
    """Quorum rules of the networks to try."""

    MAJORITY = "majority"
    BFT = "bft"
    BOTH = "both"


@app.callback()
def faults(
    context: typer.Context,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of networks, one for each seed.")] = 100,
    first: FirstOption = 0,
    quorum: Annotated[
        QuorumChoice, typer.Option("--quorum", help="Votes that decide; under bft members also lie. Both take turns.")
    ] = QuorumChoice.BOTH,
    most_liars: Annotated[
        bool, typer.Option("--most-liars", help="Only bft, with as many selfish or hoarding members as it bears.")
    ] = False,
    timeline: Annotated[bool, typer.Option("--timeline", help="Tell what happened, line by line.")] = False,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try the protocol on faulty networks: exit code 1 if any breaks a law.

    Each seed is a network of 4 to 9 nodes on a virtual clock, with lost, late and
    doubled messages, partitions, crashes, frozen and slow nodes; under bft fewer
    than a third of the members lie. The laws: honest nodes commit the same valid
    blocks; all agree within three rounds after the faults stop; nothing sent or
    committed is forgotten; no timely update is left out; only members vote; memory
    is bounded; no model is taken on trust that could be recomputed; no selfish member
    wins more blocks than its share; what a quorum signed gets onto the chain.

    Examples:

      python -m campaigns faults --seeds 500

      python -m campaigns faults --seeds 2000 --most-liars

      python -m campaigns faults --seeds 1 --first 17 --timeline

      python -m campaigns faults mutants
    """
    if context.invoked_subcommand is not None:
        return
    from bdfl.scenario import QuorumRule
    from campaigns.faults.campaign import run_campaign

    rule = None if quorum is QuorumChoice.BOTH else QuorumRule(quorum.value)
    started = time.monotonic()
    with progress("trying networks", "networks") as on_progress:
        campaign = run_campaign(
            seeds, first=first, quorum=rule, most_liars=most_liars, workers=workers, on_progress=on_progress
        )
    elapsed_s = time.monotonic() - started
    if as_json:
        print_json(campaign)
    else:
        from campaigns.faults.tables import tabulate_campaign

        print_out(tabulate_campaign(campaign))
        _print_failures(campaign, rule, most_liars)
        if timeline:
            _print_stories(range(first, first + seeds), rule, most_liars)
        elif campaign.failures:
            _print_stories([campaign.failures[0].seed], rule, most_liars)
        typer.echo(f"{seeds} networks in {elapsed_s:.1f} s, {len(campaign.failures)} of them broke a law")
    if not campaign.is_good:
        raise typer.Exit(1)


def _print_failures(campaign: "Campaign", quorum: "QuorumRule | None", most_liars: bool) -> None:
    from campaigns.faults.trial import replay_command

    for verdict in campaign.failures:
        for breach in verdict.breaches:
            typer.echo(f"seed {verdict.seed}: {breach}")
        typer.echo(f"  {replay_command(verdict.seed, quorum, most_liars=most_liars)}")


def _print_stories(seeds: "range | list[int]", quorum: "QuorumRule | None", most_liars: bool) -> None:
    from campaigns.faults.trial import try_seed

    for seed in seeds:
        typer.echo("\n".join(try_seed(seed, quorum, most_liars=most_liars, with_story=True).story) + "\n")


@app.command("mutants")
def mutants(
    names: Annotated[list[str] | None, typer.Argument(metavar="[MUTANT]...", help="Which; all unless given.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Networks to try each on, at most.")] = 2000,
    first: FirstOption = 0,
    workers: WorkersOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the table as mutants.md.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Break the protocol on purpose, one rule at a time, and check that the laws notice.

    Examples:

      python -m campaigns faults mutants forgotten-lock no-work

      python -m campaigns faults mutants --out docs/results/faults
    """
    from campaigns.faults.campaign import hunt_mutants

    with progress("hunting mutants", "mutants") as on_progress:
        results = hunt_mutants(names or None, num_seeds=seeds, first=first, workers=workers, on_progress=on_progress)
    if as_json:
        print_json(results)
    else:
        from campaigns.faults.tables import tabulate_mutants

        print_out(tabulate_mutants(results))
    if out is not None:
        from campaigns.faults.tables import mutants_markdown

        path = out / "mutants.md"
        with writing_to(out):
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(mutants_markdown(results, first, seeds), encoding="utf-8")
        if not as_json:
            print_files([path])


if __name__ == "__main__":
    app()
