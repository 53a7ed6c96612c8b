"""Settings of all tests: the same examples every time, no clock in the verdict, pictures of few points, markers."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# Files that take minutes, most of it waiting: begun first, so that no worker is left alone with one at the end.
LONG = ("test_three_machines.py", "test_environments.py", "test_quickstart.py", "test_hostile.py", "test_ray.py")

# `make test-quick` leaves out these files, and what the markers `network`, `browser` and `campaign` say.
NETWORK = [
    "cli/test_flower.py",
    "cli/test_network.py",
    "cli/test_node.py",
    "flower/test_example.py",
    "flower/test_quickstart.py",
    "live/test_access_point.py",
    "live/test_driver.py",
    "live/test_emulated_network.py",
    "live/test_evidence.py",
    "live/test_personal_layers.py",
    "live/test_relay.py",
    "live/test_training_process.py",
    "live/test_zenoh_link.py",
    "localnet/test_network.py",
    "localnet/test_new_member.py",
    "node/test_service.py",
    "node/test_status.py",
    "node/test_wrong_settings.py",
    "sweeps/test_ray.py",
    "test_guides.py",
    "test_three_machines.py",
]
SLOW = [
    "audit/test_audit_report.py",
    "campaigns/test_faults_command.py",
    "campaigns/test_model.py",
    "campaigns/test_selfish.py",
    "campaigns/test_soak.py",
    "cli/test_chain.py",
    "cli/test_commands.py",
    "cli/test_data.py",
    "cli/test_foreign_folders.py",
    "cli/test_poison.py",
    "cli/test_run.py",
    "cli/test_track.py",
    "experiment/test_comparison.py",
    "experiment/test_personal_run.py",
    "experiment/test_robustness.py",
    "experiment/test_server_runs.py",
    "experiment/test_training_run.py",
    "explorer/test_explore_command.py",
    "explorer/test_library.py",
    "explorer/test_worker.py",
    "federation/test_genesis_file.py",
    "gym/test_scheduling_env.py",
    "laws/test_bad_input.py",
    "laws/test_bounds_are_proven.py",
    "laws/test_constraints.py",
    "laws/test_exact_is_optimal.py",
    "laws/test_extremes.py",
    "laws/test_paper_results.py",
    "learning/test_label_supply.py",
    "learning/test_personal.py",
    "learning/test_precision.py",
    "learning/test_sgd_vmap.py",
    "learning/test_trainer_pool.py",
    "learning/test_training.py",
    "ledger/test_costs.py",
    "ledger/test_miner.py",
    "ledger/test_schedule.py",
    "ledger/test_store_crashes.py",
    "live/test_blob_client.py",
    "live/test_work.py",
    "node/test_doctor.py",
    "report/test_data.py",
    "report/test_figures.py",
    "report/test_learning_figures.py",
    "report/test_page.py",
    "report/test_privacy.py",
    "report/test_robustness.py",
    "reproduce/test_accuracy.py",
    "reproduce/test_reproduce.py",
    "scheduling/test_allocation.py",
    "scheduling/test_bound.py",
    "scheduling/test_certificate.py",
    "scheduling/test_registry.py",
    "sweeps/test_runner.py",
    "test_benchmarks.py",
    "test_docs.py",
    "test_environments.py",
    "test_foreign_files.py",
    "test_hostile_folders.py",
    "test_newcomer.py",
    "test_scenario.py",
    "test_site.py",
    "tracking/test_mlflow.py",
    "transports/test_faults.py",
    "transports/test_faults_of_honest_members.py",
    "transports/test_leads.py",
    "transports/test_membership.py",
    "transports/test_pruned_networks.py",
    "transports/test_server_networks.py",
    "transports/test_simulated.py",
    "verifiers/test_verifiers.py",
]


def pytest_configure() -> None:
    missing = [name for name in NETWORK + SLOW if not (Path(__file__).parent / name).exists()]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py: no such files: {', '.join(missing)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
    for item in items:
        name = item.nodeid.partition("::")[0].removeprefix("tests/")
        if name.startswith("browser/"):
            item.add_marker(pytest.mark.browser)
        if name in NETWORK:
            item.add_marker(pytest.mark.network)
        if name in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def coarse_pictures():
    """Pictures are drawn and saved as ever, of fewer points and in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bdfl.report.style.DPI", 40)
        yield
