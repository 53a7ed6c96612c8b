"""`bdfl simulate` of very many clients, with output of constant size."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bdfl.cli.data import tracking_scenario
from bdfl.cli.terminal import print_files, print_json, print_out, progress, writing_to

if TYPE_CHECKING:
    from bdfl.records import RoundRecord
    from bdfl.scenario import Scenario
    from bdfl.tracking import Tracker


def show_aggregate(
    scenario: "Scenario", trackers: "Mapping[str, Tracker]", *, gaps: bool, out: Path | None, as_json: bool
) -> None:
    """Simulate the scenario, print tables or JSON, and write the records into `out` if given."""
    from bdfl.experiment.run_folder import write_aggregate
    from bdfl.experiment.simulation import simulate_aggregate
    from bdfl.records import encode_aggregate

    def on_round(row: "RoundRecord") -> None:
        on_progress(row.round, scenario.rounds)
        tracking.settle(row)

    with (
        progress(f"simulating {scenario.name}", "rounds") as on_progress,
        tracking_scenario(trackers, scenario) as tracking,
    ):
        record = simulate_aggregate(scenario, prove_gaps=gaps, on_round=on_round)
    if as_json:
        print_json(encode_aggregate(record))
    else:
        from bdfl.report.tables import tabulate_crowd

        print_out(*tabulate_crowd(record))
    if out is not None:
        with writing_to(out):
            files = write_aggregate(scenario, record, out)
        if not as_json:
            print_files(files)
