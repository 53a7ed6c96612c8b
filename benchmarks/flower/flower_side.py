"""Flower's simulation engine with the client; runs in an environment of its own: requirements-flower.txt."""

import hashlib
import os
import sys
import tempfile

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # before either is imported

import flwr
import ray
import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from benchmarks.flower.client import app as client_app
from benchmarks.flower.task import FILE_VARIABLE, build, judge, load_task
from benchmarks.learning.flower_app import Enough, GatedAverage
from benchmarks.learning.gate import Gate, read_arguments

_SHORT_PULL_S = 0.002
_MANY = 1_000_000  # rounds, more than any benchmark asks for


def main() -> None:
    """Serves the benchmark until it says that it is enough."""
    path, kind, processes, threads = read_arguments()
    os.environ[FILE_VARIABLE] = str(path)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # Ray would say 1
    gate = Gate()
    versions = (
        f"Python {sys.version.split()[0]}, flwr {flwr.__version__}, ray {ray.__version__}, torch {torch.__version__}"
    )
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        if kind == "eager":
            grid.pull_interval = _SHORT_PULL_S
        task = load_task()
        strategy = GatedAverage(gate, task.num_clients)
        try:
            strategy.start(grid, ArrayRecord(build(task).state_dict()), num_rounds=_MANY)
        except Enough:
            arrays = strategy.arrays.to_numpy_ndarrays()
            whole = hashlib.sha256(b"".join(array.tobytes() for array in arrays))
            gate.close(*judge(task, arrays), versions, whole.hexdigest())

    with tempfile.TemporaryDirectory(prefix="ray-", dir=path.parent) as folder:
        run_simulation(
            server_app=server_app,
            client_app=client_app,
            num_supernodes=load_task().num_clients,
            backend_config={
                "init_args": {
                    "num_cpus": processes * threads,
                    "include_dashboard": False,
                    "_node_ip_address": "127.0.0.1",
                    "_temp_dir": folder,
                    "logging_level": "warning",
                },
                "client_resources": {"num_cpus": threads, "num_gpus": 0.0},
            },
        )


if __name__ == "__main__":
    main()
