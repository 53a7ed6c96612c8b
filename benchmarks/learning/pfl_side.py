"""pfl-research's simulation on a workload; runs in an environment of its own: requirements-pfl.txt.

With two processes pfl divides a round's clients itself and adds their updates up over loopback.
"""

import os
import socket
import subprocess
import sys
from importlib.metadata import version

from benchmarks.learning.gate import END, START, Gate, read_arguments

_RANK, _ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"  # pfl's own names


def join_second_process() -> "subprocess.Popen[str] | None":
    """Starts the second of two processes with this one's arguments; None where this is it."""
    if _RANK in os.environ:
        return None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ[_ADDRESSES] = f"127.0.0.1:{port},127.0.0.1:{port}"  # the first one's counts
    command = [sys.executable, "-m", "benchmarks.learning.pfl_side", *sys.argv[1:]]
    second = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {_RANK: "1"}, stdout=2, text=True)
    os.environ[_RANK] = "0"
    return second


def main() -> None:
    """Serves the benchmark until it says that it is enough."""
    path, _, processes, threads = read_arguments()
    gate = Gate()
    second = join_second_process() if processes == 2 else None

    import torch  # pfl joins the other process when it is imported

    torch.set_num_threads(threads)
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm import FederatedAveraging, NNAlgorithmParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from torch import Tensor
    from torch.nn.functional import cross_entropy

    from benchmarks.learning.models import build_model, input_tensor, judge
    from benchmarks.learning.workload import load_workload

    workload = load_workload(path)
    inputs, labels = torch.from_numpy(workload.inputs), torch.from_numpy(workload.labels)
    rounds_made = dict.fromkeys(range(workload.num_clients), 0)

    def make_user(client: int) -> PyTorchTensorDataset:
        """The client's mini-batches of its next round, one after the other, for one pass."""
        rounds_made[client] += 1
        chosen = torch.from_numpy(workload.round_batches(rounds_made[client])[client]).reshape(-1)
        return PyTorchTensorDataset((input_tensor(inputs[chosen].numpy()), labels[chosen]), user_id=str(client))

    class Rounds(TrainingProcessCallback):
        """Keeps every round behind the gate; a second process follows the first."""

        def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
            self._wait()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            return not self._wait(), Metrics()

        def _wait(self) -> bool:
            goes_on = gate.opens()
            if second is not None:
                second.stdin.write(f"{START if goes_on else END}\n")
                second.stdin.flush()
            return goes_on

    model = build_model(workload)
    model.loss = lambda some, wanted: cross_entropy(model(some), wanted)
    model.metrics = lambda some, wanted: {}

    def new_optimiser(parameters: "list[Tensor]", lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr)

    users = FederatedDataset(make_user, get_user_sampler("minimize_reuse", list(range(workload.num_clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=1_000_000,
            evaluation_frequency=1_000_001,
            train_cohort_size=workload.num_clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        PyTorchModel(model, new_optimiser, torch.optim.SGD(model.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=workload.learning_rate, local_batch_size=workload.batch
        ),
        callbacks=[Rounds()],
        send_metrics_to_platform=False,
    )
    if second is not None:
        second.wait(60)
    accuracy, loss = judge(model, workload)
    versions = f"Python {sys.version.split()[0]}, pfl {version('pfl')}, torch {torch.__version__}"
    gate.close(accuracy, loss, versions)


if __name__ == "__main__":
    main()
