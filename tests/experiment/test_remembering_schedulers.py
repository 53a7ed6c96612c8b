"""Schedulers that remember and draw, on a chain: all members plan the same, and whoever verifies it finds the same."""

import numpy as np
import pytest

from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.simulation import play
from bdfl.experiment.training_run import found_chain, prepare_run, train_run, verify_run
from bdfl.learning.trainer_pool import open_trainer
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.registry import choose_scheduler, get_scheduler


@pytest.mark.parametrize(
    "choice", ["power-of-choice", "oort", "steady", "channel-best:frequencies=best", "drc:idle_mining=full"]
)
def test_a_chain_is_scheduled_as_a_simulation_of_the_same_rounds(tmp_path, choice):
    changes = ["rounds=5", "compute.local_updates=1", "learning.evaluate_every=5"]
    scenario = choose_scheduler(load_scenario(find_scenario("minimal"), changes), choice)
    federated = prepare_run(scenario)
    with (
        open_trainer(scenario, federated.data, federated.partition) as trainer,
        create_run_folder(tmp_path / "run", scenario) as folder,
    ):
        run, _ = train_run(federated, trainer, folder)
        assert verify_run(folder).is_valid
    scheduler = get_scheduler(scenario.scheduler.name, scenario.scheduler.parameters)
    simulated = play(scenario, scheduler, federated.draws)
    np.testing.assert_array_equal(run.selected, simulated.selected)
    np.testing.assert_allclose(run.mining_hz, simulated.mining_hz, rtol=1e-6)


def test_a_genesis_states_the_length_of_the_run_to_schedulers_that_ask_for_it():
    for changes, stated in (
        (["scheduler.name=steady"], (("rounds", "5"),)),
        (["scheduler.name=steady", "scheduler.parameters.rounds=0"], (("rounds", "0"),)),
        (["scheduler.name=oort"], ()),
    ):
        scenario = load_scenario(find_scenario("minimal"), ["rounds=5", *changes])
        federated = prepare_run(scenario)
        with open_trainer(scenario, federated.data, federated.partition) as trainer:
            assert found_chain(federated, trainer)[0].scheduler.parameters == stated
