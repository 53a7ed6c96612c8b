"""`bdfl chain privacy`: the stated privacy budgets of members, recomputed."""

from dataclasses import asdict

import typer

from bdfl.cli.chain import INVALID_EXIT, PathArgument, chain_app, open_chain
from bdfl.cli.options import JsonOption
from bdfl.cli.terminal import print_json, print_out, say


@chain_app.command("privacy")
def privacy(path: PathArgument, as_json: JsonOption = False) -> None:
    """Recompute each member's epsilon and compare it with the stated one.

    Steps, sampling rate, noise and delta follow from the genesis and the schedules on the chain. One thing is taken on
    trust: that a member added its noise. Exit code 1 if a member states too little or too much. Needs Opacus.

    Examples:
      bdfl chain privacy runs/quickstart-drc-0
      bdfl chain privacy runs/quickstart-drc-0 --json
    """
    from bdfl.audit.privacy import audit_privacy

    with open_chain(path) as chain:
        found = audit_privacy(chain)
    if as_json:
        print_json(asdict(found) | {"is_right": found.is_right})
    else:
        from bdfl.report.privacy_tables import tabulate_privacy

        print_out(tabulate_privacy(found))
    if not found.is_right:
        say("WRONG: what some members state is not what they spent", err=True)
        raise typer.Exit(INVALID_EXIT)
