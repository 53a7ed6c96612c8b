"""Runs of very many clients: simulated like any other, but aggregated per round instead of stored."""

from collections.abc import Callable

from bdfl.experiment.simulation import play_rounds, stream_run
from bdfl.records import CrowdBook, CrowdRecord, RoundRecord
from bdfl.scenario import Scenario, scenario_digest
from bdfl.scheduling.queues import drift_constant
from bdfl.scheduling.registry import get_scheduler

MAX_KEPT_CLIENTS = 20_000  # with full records: 1.5 MB a round


def is_crowd(scenario: Scenario) -> bool:
    """Return whether there are too many clients to store and show each one's rounds."""
    return scenario.clients.count > MAX_KEPT_CLIENTS


def simulate_crowd(
    scenario: Scenario, *, prove_gaps: bool = False, on_round: Callable[[RoundRecord], None] | None = None
) -> CrowdRecord:
    """Simulate the scenario's own scheduler and aggregate its records; the same rounds as in `simulate`.

    Memory does not grow with the rounds. `on_round` is called after every round.
    """
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    draws = stream_run(scenario)
    book = CrowdBook(draws.participation_rate)
    for planned in play_rounds(scenario, scheduler, draws):
        record = planned.settle(planned.decision.selected, prove_gap=prove_gaps)
        book.add(record)
        if on_round is not None:
            on_round(record)
    return CrowdRecord(
        scenario=scenario.name,
        scenario_digest=scenario_digest(scenario),
        scheduler=scenario.scheduler.name,
        tradeoff=scenario.scheduler.tradeoff,
        seed=scenario.seed,
        drift_constant=drift_constant(draws.participation_rate),
        rounds=book.rounds,
        clients=book.totals(),
    )
