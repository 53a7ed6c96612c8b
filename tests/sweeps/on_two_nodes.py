"""Run by `test_ray.py` in a process of its own: a Ray cluster of two nodes, work on both, and one killed under way.

Arguments: a folder with `sweep.toml`, which gets what is compared. RAY_TMPDIR says where the cluster lives.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

import psutil

from bdfl.experiment import parallel
from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.trainer_pool import open_ray_trainer
from bdfl.ray_cluster import count_cpus, open_ray
from bdfl.scenario import load_scenario
from bdfl.scenario.files import find_scenario
from bdfl.scheduling.registry import get_scheduler
from bdfl.sweeps.executors import open_ray_executor
from bdfl.sweeps.plan import load_sweep
from bdfl.sweeps.results import open_sweep_folder
from bdfl.sweeps.runner import run_sweep
from tests.sweeps.broken_schedulers import holding
from tests.sweeps.small_sweeps import LEARNING

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
PATIENCE_S = 300
NOTICE_SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 60}


def main(folder):
    from ray.cluster_utils import Cluster

    cluster = patiently(Cluster, initialize_head=True, head_node_args=NODE | {"_system_config": NOTICE_SOON})
    second = patiently(cluster.add_node, **NODE)
    try:
        with open_ray(cluster.address) as ray:
            found = {"cpus": count_cpus(ray), "trained": train(ray, folder / "run")}
            found |= sweep(second, folder)
            found["cpus_left"] = wait_for_cpus(ray, 1)
        command(cluster.address, "sweep", folder / "small.toml", "--out", folder / "by-command")
        changes = [word for change in LEARNING for word in ("--set", change)]
        command(cluster.address, "run", "minimal", *changes, "--out", folder / "run-by-command")
    finally:
        cluster.shutdown()
    (folder / "found.json").write_text(json.dumps(found))


def patiently(start, **settings):
    """What `start` starts, at the third attempt if need be: Ray gives a node 30 s, which a busy machine may exceed."""
    for _ in range(2):
        with suppress(Exception):
            return start(**settings)
    return start(**settings)


def train(ray, path):
    """A run whose clients are trained on both nodes; a seat is killed after the first round. Seats at the end."""
    federated = prepare_run(load_scenario(find_scenario("minimal"), LEARNING))
    with open_ray_trainer(federated.scenario, federated.data, federated.partition, address=None) as trainer:
        seats = trainer._map.__self__

        def kill_one(record, row):
            if row.round == 1:
                ray.kill(seats._all[0])

        with create_run_folder(path, federated.scenario) as folder:
            train_run(federated, trainer, folder, on_settled=kill_one)
        return len(seats._all)


def sweep(second, folder):
    """A sweep that is interrupted at once, gone on with, and loses a node that is in the middle of a batch."""
    planned = load_sweep(folder / "sweep.toml")
    with open_sweep_folder(folder / "out", planned) as opened:

        def interrupt(done, total):
            raise KeyboardInterrupt

        with suppress(KeyboardInterrupt), open_ray_executor(None, None, with_torch=False) as executor:
            run_sweep(planned, opened, executor, on_progress=interrupt)
        num_before = len(opened.done)
        # Only now: a batch of the first sweep that is not yet cancelled must not be the one that is held.
        scheduler = partial(holding, place=folder, node=second.node_id)
        parallel.get_scheduler = lambda name, given: scheduler if name == "random" else get_scheduler(name, given)
        Thread(target=kill_when_held, args=(second, folder), daemon=True).start()
        with open_ray_executor(None, None, with_torch=False) as executor:
            outcome = run_sweep(planned, opened, executor)
        return {
            "before": num_before,
            "computed": outcome.num_computed,
            "lost": outcome.num_lost,
            "failed": len(outcome.failed),
        }


def command(address, *words):
    """A command of bdfl that is told of the cluster."""
    words = [sys.executable, "-m", "bdfl.cli", *map(str, words), "--engine", "ray", "--address", address, "--json"]
    subprocess.run(words, check=True)


def kill_when_held(node, folder):
    while not (folder / "held").exists():
        time.sleep(0.01)
    kill_machine(node)


def wait_for_cpus(ray, number):
    deadline = time.monotonic() + PATIENCE_S
    while count_cpus(ray) != number and time.monotonic() < deadline:
        time.sleep(0.1)
    return count_cpus(ray)


def kill_machine(node):
    """All processes of a node at once, its workers first: as when the plug is pulled."""
    for raylet in node.all_processes["raylet"]:
        for process in [*psutil.Process(raylet.process.pid).children(recursive=True), raylet.process]:
            process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
