"""Blockchain-aided decentralised federated learning over wireless networks.

The functions here are all that a script needs; each is imported at its first use, so that `import bdfl` is light.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from pathlib import Path

    from bdfl.experiment.comparison import Comparison, compare
    from bdfl.experiment.run_folder import verify_chain
    from bdfl.experiment.simulation import simulate
    from bdfl.experiment.training_run import Run, Settled
    from bdfl.records.run import RunRecord
    from bdfl.scenario import Scenario, load_scenario

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Run",
    "RunRecord",
    "Scenario",
    "__version__",
    "compare",
    "load_scenario",
    "run",
    "simulate",
    "verify_chain",
]

_HOMES = {
    "Comparison": "bdfl.experiment.comparison",
    "Run": "bdfl.experiment.training_run",
    "RunRecord": "bdfl.records.run",
    "Scenario": "bdfl.scenario",
    "compare": "bdfl.experiment.comparison",
    "load_scenario": "bdfl.scenario",
    "simulate": "bdfl.experiment.simulation",
    "verify_chain": "bdfl.experiment.run_folder",
}


def run(
    scenario: "Scenario",
    out: "Path | str | None" = None,
    *,
    workers: int | None = None,
    on_round: "Settled | None" = None,
) -> "Run":
    """Train a model on a simulated network with a chain: prepare, train, verify, and write the folder of `bdfl run`.

    Without `out` no tables and figures are written, and the folder lives as long as the result. `workers` processes
    train (default: by engine and cores), with the same result. `on_round` is called with the records of every round.
    """
    from pathlib import Path

    from bdfl.experiment.training_run import RunOptions, run

    options = RunOptions(workers=workers, on_settled=on_round, write=None if out is None else _write_report)
    return run(scenario, None if out is None else Path(out), options)


def _write_report(made: "Run") -> "list[Path]":
    from bdfl.report.page import write_run  # needs Matplotlib

    return write_run(made)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'bdfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
