"""Flower's simulation engine on a workload; runs in an environment of its own: requirements-flower.txt."""

import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # before either is imported

import flwr
import ray
import torch
from flwr.simulation import run_simulation

from benchmarks.learning.flower_app import make_client_app, make_server_app
from benchmarks.learning.gate import Gate, read_arguments
from benchmarks.learning.workload import load_workload

_SHORT_PULL_S = 0.002


def main() -> None:
    """Serves the benchmark until it says that it is enough."""
    path, kind, processes, threads = read_arguments()
    gate = Gate()
    num_clients = load_workload(path).num_clients
    versions = (
        f"Python {sys.version.split()[0]}, flwr {flwr.__version__}, ray {ray.__version__}, torch {torch.__version__}"
    )
    with tempfile.TemporaryDirectory(prefix="ray-", dir=path.parent) as folder:
        run_simulation(
            server_app=make_server_app(str(path), gate, _SHORT_PULL_S if kind == "eager" else None, versions),
            client_app=make_client_app(str(path), threads),
            num_supernodes=num_clients,
            backend_config={
                "init_args": {
                    "num_cpus": processes * threads,
                    "include_dashboard": False,
                    "_node_ip_address": "127.0.0.1",
                    "_temp_dir": str(Path(folder)),
                    "logging_level": "warning",
                },
                "client_resources": {"num_cpus": threads, "num_gpus": 0.0},
            },
        )


if __name__ == "__main__":
    main()
