"""`bdfl simulate` of very many clients: what it prints and writes does not grow with them."""

from pathlib import Path
from typing import TYPE_CHECKING

from bdfl.cli.terminal import print_files, print_json, print_out, progress, writing_to

if TYPE_CHECKING:
    from bdfl.scenario import Scenario


def show_crowd(scenario: "Scenario", *, gaps: bool, out: Path | None, as_json: bool) -> None:
    """Plays the scenario, prints tables or JSON, and writes the records into `out` if there is one."""
    from bdfl.experiment.crowd import simulate_crowd
    from bdfl.experiment.record_folder import write_crowd
    from bdfl.records import encode_crowd

    with progress(f"simulating {scenario.name}", "rounds") as on_progress:
        record = simulate_crowd(scenario, prove_gaps=gaps, on_round=lambda done: on_progress(done, scenario.rounds))
    if as_json:
        print_json(encode_crowd(record))
    else:
        from bdfl.report.crowd_tables import tabulate_crowd

        print_out(*tabulate_crowd(record))
    if out is not None:
        with writing_to(out):
            files = write_crowd(scenario, record, out)
        if not as_json:
            print_files(files)
