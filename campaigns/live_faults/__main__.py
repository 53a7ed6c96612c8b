"""`python -m campaigns live_faults`: fault injection into networks of real processes, judged by invariants."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdfl.cli.options import JsonOption
from bdfl.cli.terminal import OneLineErrors, describe_machine, print_files, print_json, print_out, writing_to
from bdfl.errors import require_extra
from bdfl.scenario import QuorumRule
from campaigns.live_faults.results import TroubleKind

if TYPE_CHECKING:
    from campaigns.live_faults.campaign import LiveCampaign, Trial
    from campaigns.live_faults.results import LiveOutcome

DEFAULT_FOLDER = Path("runs/live-faults")
FAILED_EXIT = 1


app = typer.Typer(cls=OneLineErrors, rich_markup_mode="rich", invoke_without_command=True)


@app.callback()
def faults(
    only: Annotated[
        list[TroubleKind] | None, typer.Option("--only", help="Kind of fault. Repeatable.", show_default="all")
    ] = None,
    kills: Annotated[int, typer.Option("--kills", min=1, help="Number of kills with a restart.")] = 20,
    nodes: Annotated[int, typer.Option("--nodes", min=4, help="Members of each network.")] = 8,
    quorum: Annotated[
        QuorumRule | None, typer.Option("--quorum", help="Quorum rule.", show_default="bft; for dead, both")
    ] = None,
    stop: Annotated[float, typer.Option("--stop", min=1.0, help="Seconds that a stopped node is suspended.")] = 30.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of nodes, faults and moments.")] = 0,
    time_scale: Annotated[
        float, typer.Option("--time-scale", min=0, help="Real seconds of a modelled second; a round has 0.74.")
    ] = 5.0,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a value of the scenario live. Repeatable."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folders of all networks.")] = False,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for networks, README.md and faults.json.")
    ] = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Inject faults into networks of real processes and check invariants.

    Faults: nodes are killed at any moment and while they write, killed for good, or suspended. Access points are
    killed, disks are full, clocks are wrong, lines are slow.

    Invariants: all chains are valid and the same. No member equivocates or loses what it sent or stored. No node waits
    for a silent one beyond a round's deadline. A restarted node votes again within two rounds.

    Exit code 1 if one is violated. The folder of that network stays, with all logs.

    Examples:
      python -m campaigns live_faults --only kill --kills 5 --nodes 4
      python -m campaigns live_faults --kills 200 --out results/live-faults
    """
    require_extra("a live network", "learn", "live")
    from campaigns.live_faults.campaign import Amounts, plan_trials, run_live_campaign
    from campaigns.live_faults.harness import Setting

    setting = Setting(seed=seed, num_nodes=nodes, time_scale=time_scale, changes=tuple(changes or ()))
    trials = plan_trials(only or list(TroubleKind), setting, quorum, Amounts(kills=kills, stop_s=stop))
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        command, paths = _command(only, kills, nodes, quorum, seed), list[Path]()
        for campaign in run_live_campaign(trials, _new_folder(out), keeps=keep, on_trial=_say):
            paths = _write(out, campaign, command)  # after each network: a campaign may take hours
    if as_json:
        print_json(campaign)
    else:
        from campaigns.live_faults.tables import tabulate_live_campaign

        print_out(tabulate_live_campaign(campaign))
        print_files(paths)
    if campaign.failures:
        raise typer.Exit(FAILED_EXIT)


def _new_folder(out: Path) -> Path:
    """Create the folder for the networks of this campaign."""
    number = 1
    while (out / f"networks-{number}").exists():
        number += 1
    folder = out / f"networks-{number}"
    folder.mkdir()
    return folder


def _say(trial: "Trial", outcome: "LiveOutcome | None") -> None:
    """Print a line before each network, and its violations after it."""
    if outcome is None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {trial.name}", err=True)
        return
    for breach in outcome.breaches:
        typer.echo(f"{trial.kind.value}, seed {trial.setting.seed}: {breach}", err=True)
    if outcome.breaches:
        typer.echo(f"  all logs: {outcome.folder}", err=True)
        typer.echo(f"  again: {trial.command}", err=True)


def _command(only: list[TroubleKind] | None, kills: int, nodes: int, quorum: QuorumRule | None, seed: int) -> str:
    words = ["python -m campaigns live_faults", *(f"--only {kind.value}" for kind in only or ())]
    words += [f"--kills {kills}", f"--nodes {nodes}", f"--seed {seed}"]
    return " ".join(words + ([] if quorum is None else [f"--quorum {quorum.value}"]))


def _write(out: Path, campaign: "LiveCampaign", command: str) -> list[Path]:
    import msgspec

    from campaigns.live_faults.tables import live_campaign_markdown

    page, data = out / "README.md", out / "faults.json"
    page.write_text(live_campaign_markdown(campaign, command, describe_machine()), encoding="utf-8")
    data.write_bytes(msgspec.json.format(msgspec.json.encode(campaign), indent=1) + b"\n")
    return [page, data]


if __name__ == "__main__":
    app()
