"""`python -m campaigns model`: the agreement as a model for Spin, in all states, and recorded networks against it."""

from typing import Annotated

import typer

from bdfl.cli.terminal import OneLineErrors
from bdfl.errors import BdflError
from campaigns.model.instances import INSTANCES, MUTANTS, hunt
from campaigns.model.spin import check as check_instance, check_trace
from campaigns.model.traces import record_seed

app = typer.Typer(cls=OneLineErrors, rich_markup_mode="rich", no_args_is_help=True)


class _Unknown(BdflError):
    """A name that is none of those there are."""


def _require_known(names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise _Unknown(f"no {name!r}, expected one of {', '.join(known)}")


@app.callback()
def model() -> None:
    """Check the formal model of the agreement, `models/agreement/agreement.pml`. Needs Spin and gcc.

    Examples:

      python -m campaigns model check small

      python -m campaigns model mutants

      python -m campaigns model traces --seeds 20
    """


@app.command("check")
def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[INSTANCE]...", help="Which; all unless given.")] = None,
) -> None:
    """Look at every state of an instance: exit code 1 if a law is broken.

    Examples:

      python -m campaigns model check small

      python -m campaigns model check whole
    """
    _require_known(names or [], list(INSTANCES))
    is_good = True
    for name in names or INSTANCES:
        instance = INSTANCES[name]
        found = check_instance(instance.parameters, hash_bits=instance.hash_bits)
        verdict = f"breaks {found.law}" if found.law else "holds"
        size = f"{found.num_states:,} states, {found.memory_mb:,.0f} MB, {found.took_s:.1f} s"
        typer.echo(f"{name}: {instance.about}: {verdict}, {size}")
        is_good = is_good and not found.law
    if not is_good:
        raise typer.Exit(1)


@app.command("mutants")
def mutants(
    names: Annotated[list[str] | None, typer.Argument(metavar="[MUTANT]...", help="Which; all unless given.")] = None,
) -> None:
    """Break the model in one rule at a time: exit code 1 if a wrong one keeps all laws.

    Examples:

      python -m campaigns model mutants forgotten-lock late-precommit
    """
    _require_known(names or [], [mutant.name for mutant in MUTANTS])
    results = hunt(names or None)
    for result in results:
        law = result.found.law or "nothing broken"
        typer.echo(f"{result.mutant.name}: {law}, {result.found.num_states:,} states, {result.mutant.change}")
    num_caught = sum(result.is_caught for result in results)
    typer.echo(f"{num_caught} of {len(results)} wrong models caught")
    if num_caught < len(results):
        raise typer.Exit(1)


@app.command("traces")
def traces(
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Networks of the fault campaign.")] = 20,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
) -> None:
    """Play networks in trouble and ask whether what honest members did is a behaviour of the model.

    Exit code 1 if any is not.

    Examples:

      python -m campaigns model traces --seeds 20

      python -m campaigns model traces --seeds 1 --first 52
    """
    num_accepted = num_steps = 0
    for seed in range(first, first + seeds):
        trace = record_seed(seed)
        found = check_trace(trace)
        num_steps += len(trace.steps)
        num_accepted += not found.law
        if found.law:
            typer.echo(f"seed {seed}: {found.law}")
    typer.echo(f"{num_accepted} of {seeds} networks accepted, {num_steps:,} steps")
    if num_accepted < seeds:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
