"""`python -m campaigns hostile`: attacks of hostile peers on a network of real processes."""

import tempfile
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import JsonOption
from bdfl.cli.terminal import OneLineErrors, describe_machine, print_files, print_json, print_out, writing_to
from bdfl.errors import BdflError, require_extra
from campaigns.hostile.attacks import ATTACKS, Who

if TYPE_CHECKING:
    from campaigns.hostile.campaign import AttackResult, HostileResult

FAILED_EXIT = 1


class Peer(StrEnum):
    """The attacker."""

    STRANGER = "stranger"
    MEMBER = "member"
    BOTH = "both"


class UnknownAttack(BdflError):
    """An unknown name of an attack."""


app = typer.Typer(cls=OneLineErrors, rich_markup_mode="rich", invoke_without_command=True)


@app.callback()
def hostile(
    count: Annotated[int, typer.Option("--count", min=1, help="Messages or connections of each attack.")] = 100_000,
    nodes: Annotated[int, typer.Option("--nodes", min=3, help="Honest nodes, besides one hostile member.")] = 8,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Least number of rounds of each phase.")] = 20,
    rate: Annotated[float, typer.Option("--rate", min=0, help="Messages or connections a second; 0: no limit.")] = 0.0,
    peer: Annotated[Peer, typer.Option("--as", help="The attacker.")] = Peer.BOTH,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Attack, such as garbage, replayed, begging, noise or unlisted. Repeatable.",
            show_default="all",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="New folder for the network.", show_default="a temporary one")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for README.md and hostile.json.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Attack a network of real processes and measure the damage.

    A stranger sends bytes and broken or unlisted TLS handshakes to the nodes' addresses. A member with its own
    certificate sends garbage, oversized, replayed and forged messages and false requests, as fast as they are taken.

    Exit code 1 unless all limits hold. Honest rounds must fall by less than 20 % against a control with the same CPU
    load. Memory must stay bounded, nothing may be accepted, and a stranger must get nothing. Best run on an idle
    machine.

    Examples:
      python -m campaigns hostile --count 2000 --nodes 4 --rounds 5
      python -m campaigns hostile --as member --only garbage --out results/hostile
    """
    require_extra("a live network", "learn", "live")
    from campaigns.hostile.campaign import hostile_scenario, run_hostile_campaign, select_attacks

    for name in only or ():
        if name not in [attack.name for attack in ATTACKS]:
            raise UnknownAttack(f"no attack {name!r}; there are: {', '.join(attack.name for attack in ATTACKS)}")
    attacks = select_attacks(None if peer is Peer.BOTH else Who(peer.value), only or ())
    with ExitStack() as resources:
        where = folder
        if where is None:
            where = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="bdfl-hostile-"))) / "network"
        resources.enter_context(writing_to(where))
        typer.echo(f"{len(attacks)} attacks on {nodes} nodes; a line for each when it is over", err=True)
        result = run_hostile_campaign(
            where,
            hostile_scenario(nodes),
            attacks,
            count=count,
            rounds=rounds,
            rate=rate,
            on_attack=_tell,
            on_verified=_tell_verified,
        )
    if as_json:
        print_json(result)
    else:
        from campaigns.hostile.tables import summarise_hostile, tabulate_hostile

        print_out(tabulate_hostile(result))
        for line in summarise_hostile(result):
            typer.echo(line)
    if out is not None:
        words = ["python -m campaigns hostile", f"--count {count}", f"--nodes {nodes}", f"--rounds {rounds}"]
        words += ([f"--rate {rate:g}"] if rate else []) + ([] if peer is Peer.BOTH else [f"--as {peer.value}"])
        paths = _write(out, result, " ".join([*words, *(f"--only {name}" for name in only or ())]))
        if not as_json:
            print_files(paths)
    if not result.is_good:
        raise typer.Exit(FAILED_EXIT)


def _tell(one: "AttackResult") -> None:
    falls = f"{100 * one.fall:.0f} % of honest rounds lost"
    typer.echo(f"{one.attack}, {one.who}: {one.said.sent:,} in {one.attacked.seconds:.0f} s, {falls}", err=True)


def _tell_verified(done: int, total: int) -> None:
    typer.echo(f"verified the chains of {done} of {total} nodes", err=True)


def _write(out: Path, result: "HostileResult", command: str) -> list[Path]:
    import msgspec

    from campaigns.hostile.tables import hostile_markdown

    page, data = out / "README.md", out / "hostile.json"
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        page.write_text(hostile_markdown(result, command, describe_machine()), encoding="utf-8")
        data.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return [page, data]


if __name__ == "__main__":
    app()
