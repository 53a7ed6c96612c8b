"""A training process gives the bits of a simulated run, obeys, outlives its own death, and ends with its owner."""

import errno
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bdfl.experiment.learner import Learner
from bdfl.experiment.training_run import found_chain, prepare_run
from bdfl.learning.data import BadData
from bdfl.learning.privacy_accounting import mechanism_of, spent_micro
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import TrainingFailed
from bdfl.ledger.chain import start_chain
from bdfl.ledger.genesis import make_toolbox
from bdfl.scenario import dump_scenario, load_scenario, override_scenario
from bdfl.scenario.files import find_scenario
from bdfl.transports.live import training_process
from bdfl.transports.live.share_trainer import ShareTrainer
from bdfl.transports.live.training_process import DEALT, Failed, Judged, Trained, TrainingProcess, TrainOrder

PATIENCE_S = 240.0
SCENARIO = load_scenario(find_scenario("quickstart"), ["rounds=3", "learning.engine=loop"])


class Simulated:
    """What the members of a simulated run are given and send in round 1."""

    def __init__(self, scenario):
        self.federated = prepare_run(scenario)
        with open_trainer(scenario, self.federated.data, self.federated.partition) as trainer:
            self.trainer = trainer
            genesis, self.initial = found_chain(self.federated, trainer)
        self.chain = start_chain(genesis, make_toolbox(scenario))
        self.learner = Learner(scenario, trainer, genesis.model.initial, trainer.initial_weights())

    def send(self, client):
        return self.learner.train(client, self.chain, self.initial)


@pytest.fixture(scope="module")
def simulated():
    return Simulated(SCENARIO)


@pytest.fixture(scope="module")
def client(simulated):
    return simulated.chain.schedule.selected[-1]


@pytest.fixture(scope="module")
def process(client):
    with TrainingProcess(SCENARIO, client) as process:
        process.wait_ready(PATIENCE_S)
        yield process


def ask(order, *arguments):
    answers = queue.SimpleQueue()
    order(*arguments, answers.put)
    return answers.get(timeout=PATIENCE_S)


def test_it_has_what_the_partition_deals_to_its_client(process, simulated, client):
    ready = process.wait_ready(PATIENCE_S)
    assert ready.label_counts == tuple(simulated.federated.partition.label_counts[client])
    assert ready.samples == sum(ready.label_counts) == len(simulated.federated.partition.indices[client])
    assert ready.test_samples == len(simulated.federated.data.test_labels)
    assert ready.model_size == len(simulated.initial)


def test_a_trained_model_has_the_bits_of_a_simulated_run(process, simulated, client):
    answer = ask(process.train, simulated.initial, 1)
    assert isinstance(answer, Trained)
    assert answer.model == simulated.send(client)
    assert answer.num_samples == 20 * 32
    assert answer.duration_ns > 0


def test_without_a_model_the_untrained_one_is_trained(process, simulated, client):
    assert ask(process.train, b"", 1).model == simulated.send(client)


def test_another_round_has_other_batches(process, simulated, client):
    assert ask(process.train, simulated.initial, 2).model != simulated.send(client)


def test_a_model_is_judged_as_in_a_simulated_run(process, simulated):
    answer = ask(process.evaluate, simulated.initial)
    wanted = simulated.trainer.evaluate(simulated.trainer.initial_weights())
    assert isinstance(answer, Judged)
    assert (answer.accuracy, answer.loss) == (wanted.accuracy, wanted.loss)


def test_a_model_of_another_form_fails_in_one_line_and_the_process_goes_on(process, simulated, client):
    answer = ask(process.train, b"no model", 1)
    assert isinstance(answer, Failed)
    assert "bytes given" in answer.reason
    assert ask(process.train, simulated.initial, 1).model == simulated.send(client)


def test_judging_and_training_at_once_are_both_answered(process, simulated, client):
    answers = queue.SimpleQueue()
    for _ in range(10):
        process.evaluate(simulated.initial, answers.put)
        process.train(simulated.initial, 1, answers.put)
        found = [answers.get(timeout=PATIENCE_S) for _ in range(2)]
        assert {type(answer) for answer in found} == {Judged, Trained}
    assert process.num_restarts == 0


def test_stopping_at_any_moment_leaves_the_process_ready_for_the_next_order(process, simulated, client):
    def refuse(answer):
        late.append(answer)

    late = []
    for number in range(60):
        process.train(simulated.initial, 1, refuse)
        time.sleep(0.001 * (number % 30))
        process.stop()
    assert ask(process.train, simulated.initial, 1).model == simulated.send(client)
    assert process.num_restarts == 0
    assert all(isinstance(answer, Trained) for answer in late)  # those that were done before they were stopped


_QUEUE = """
import os, threading
from bdfl.processes import Channel
from bdfl.transports.live.training_process import Judged, JudgeOrder, StopOrder, TrainOrder
from bdfl.transports.live.training_worker import _OrderQueue

def open_queue():
    global waiting, owner
    reading, writing = os.pipe()
    waiting, owner = _OrderQueue(Channel(reading, writing)), Channel(reading, writing)

def go_on_for_ever(order):
    threading.Thread(target=owner.send, args=(order,)).start()
    while True:
        try:
            sum(range(1000))
        except Exception:
            pass

def show(answer):
    print(answer, flush=True)

"""


def run_queue(script):
    command = [sys.executable, "-c", _QUEUE + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.splitlines()


def test_endless_training_is_left_when_told_and_judging_makes_room_for_training_and_begins_again_after_it():
    left = """
open_queue()
show(waiting.train(1, lambda: go_on_for_ever(StopOrder(1))))
show(waiting.train(1, lambda: go_on_for_ever(StopOrder(1))))  # stopped before: it is not begun
os.kill(os.getpid(), 2)  # an interrupt is for the owner
show(waiting.train(2, lambda: Judged(2, 0.5, 1.0)))
"""
    judged = """
open_queue()
judge, training = JudgeOrder(1, b""), TrainOrder(2, 1, b"")
show(waiting.judge(judge, lambda: go_on_for_ever(training)))
show(waiting.next_order() == training)
show(waiting.train(2, lambda: "trained"))
show(waiting.next_order() == judge)
show(waiting.judge(judge, lambda: "judged"))
"""
    found = run_queue(left + judged)
    assert found[:3] == ["Stopped(number=1)", "Stopped(number=1)", "Judged(number=2, accuracy=0.5, loss=1.0)"]
    assert found[3:] == ["None", "True", "trained", "True", "judged"]


def stand_in(monkeypatch, script):
    """Another process instead of the one that trains."""
    head = "import os\nfrom bdfl.processes import open_parent_channel\n"
    head += "from bdfl.transports.live.training_process import ORDERS, Ready, Trained, Unready\n"
    head += "channel = open_parent_channel()\n"
    monkeypatch.setattr(training_process, "_WORKER", ("-c", head + script))


def test_a_process_that_somebody_ended_is_replaced_and_its_order_repeated(monkeypatch):
    script = """
setup = channel.receive(ORDERS)
channel.send(Ready(samples=1, label_counts=(1,), test_samples=0, num_parameters=1, model_size=1))
while (order := channel.receive(ORDERS)) is not None:
    model = order.model + setup.scenario.encode() + bytes([setup.client])
    channel.send(Trained(order.number, model, 0.5, 1, 1))
"""
    stand_in(monkeypatch, script)
    with TrainingProcess(SCENARIO, 3) as process:
        process.wait_ready(PATIENCE_S)
        os.kill(process.process_id, signal.SIGKILL)
        assert ask(process.train, b"model", 1).model == b"model" + dump_scenario(SCENARIO).encode() + bytes([3])
        assert process.num_restarts == 1
    assert process.num_restarts == 1  # closing is none


def test_an_order_that_kills_the_process_twice_fails(monkeypatch, tmp_path):
    marks = tmp_path / "tries"
    stand_in(monkeypatch, f"open({str(marks)!r}, 'a').write('x')\nos._exit(9)")
    with TrainingProcess(SCENARIO, 0) as process:
        answer = ask(process.train, b"", 1)
        assert isinstance(answer, Failed)
        assert "died" in answer.reason
    assert 2 <= len(marks.read_text()) <= 3  # it may have died once before the order came


def test_what_can_never_train_says_why(monkeypatch):
    stand_in(monkeypatch, "channel.send(Unready('data missing.npz: not found'))")
    with TrainingProcess(SCENARIO, 0) as process:
        with pytest.raises(TrainingFailed, match=r"missing\.npz"):
            process.wait_ready(PATIENCE_S)
        assert ask(process.train, b"", 1).reason == process.failure == "data missing.npz: not found"


def give_no_process(monkeypatch, is_short):
    """The system gives no process for as long as `is_short`."""
    popen = subprocess.Popen

    def give(*arguments, **options):
        if is_short():
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", give)


def test_without_a_process_orders_fail_with_the_reason_until_there_is_one_again(monkeypatch):
    monkeypatch.setattr(training_process, "_RETRY_WAIT_S", 0.05)
    stand_in(monkeypatch, "channel.send(Unready('at last'))")
    shortage = [True]
    give_no_process(monkeypatch, lambda: shortage[0])
    with TrainingProcess(SCENARIO, 0) as process:
        for _ in range(2):
            answer = ask(process.train, b"", 1)
            assert answer.reason == "no training process: Resource temporarily unavailable"
        with pytest.raises(TrainingFailed, match="Resource temporarily unavailable"):
            process.wait_ready(0.01)
        assert process.failure is None
        shortage[0] = False
        with pytest.raises(TrainingFailed, match="at last"):
            process.wait_ready(PATIENCE_S)


def test_waiting_for_a_process_ends_when_it_is_closed(monkeypatch):
    monkeypatch.setattr(training_process, "_RETRY_WAIT_S", 600.0)
    give_no_process(monkeypatch, lambda: True)
    process = TrainingProcess(SCENARIO, 0)
    process.close()


def test_a_process_that_stands_still_can_be_closed(monkeypatch):
    monkeypatch.setattr(training_process, "_CLOSE_WAIT_S", 0.1)
    stand_in(monkeypatch, "import time\ntime.sleep(600)")
    process = TrainingProcess(SCENARIO, 0)
    process.train(bytes(2**20), 1, print)
    process.close()
    process.close()


_OWNER = """
import time
from bdfl.scenario import Scenario
from bdfl.transports.live.training_process import TrainingProcess
process = TrainingProcess(Scenario(), 0)
while process.process_id is None:
    time.sleep(0.01)
print(process.process_id, flush=True)
time.sleep(600)
"""


def is_alive(process_id):
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_process_ends_with_its_owner_however_that_ends():
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        process_id = int(owner.stdout.readline())
        owner.kill()
    deadline_s = time.monotonic() + PATIENCE_S
    while is_alive(process_id):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


# The share of one client


def test_only_the_clients_own_samples_are_kept():
    trainer = ShareTrainer(SCENARIO, 3, DEALT)
    assert len(trainer._material.train_inputs) == trainer.ready.samples == 180


@pytest.mark.parametrize("kind", ["label-flip", "sign-flip", "gaussian"])
def test_a_member_that_poisons_in_the_scenario_does_so_here(kind):
    poisoned = override_scenario(SCENARIO, [f"adversaries.kind={kind}", "adversaries.members=[0, 1, 2, 3, 4, 5, 6, 7]"])
    simulated = Simulated(poisoned)
    client = simulated.chain.schedule.selected[0]
    answer = ShareTrainer(poisoned, client, DEALT).train(TrainOrder(1, 1, simulated.initial))
    assert answer.model == simulated.send(client)


def test_a_training_that_diverges_gives_no_model():
    wild = override_scenario(SCENARIO, ["learning.learning_rate=1e30"])
    answer = ShareTrainer(wild, 0, DEALT).train(TrainOrder(1, 1, b""))
    assert answer.model is None


def test_a_private_node_draws_what_nobody_knows_and_says_what_it_has_spent():
    private = override_scenario(SCENARIO, ["privacy.noise_multiplier=1.2"])
    trainer = ShareTrainer(private, 0, DEALT)
    first, second = (trainer.train(TrainOrder(1, 1, b"", before)) for before in (0, 4))
    assert first.model != second.model
    mechanism = mechanism_of(private, 180, 1_200_000)
    assert (first.epsilon_micro, second.epsilon_micro) == tuple(spent_micro(mechanism, rounds) for rounds in (1, 5))
    assert first.num_samples == mechanism.steps * private.learning.batch
    assert ShareTrainer(SCENARIO, 0, DEALT).train(TrainOrder(1, 1, b"", 4)).epsilon_micro == 0


def write_data(path, num_labels):
    rng = np.random.default_rng(1)
    inputs = rng.integers(0, 255, (40, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(40) % num_labels
    np.savez(path, train_inputs=inputs, train_labels=labels, test_inputs=inputs[:10], test_labels=labels[:10])
    return str(path)


def test_a_members_own_data_are_all_its_share_though_it_lacks_some_labels(tmp_path):
    own = write_data(tmp_path / "own.npz", 3)
    trainer = ShareTrainer(SCENARIO, 11, own)  # also of one who is not in the scenario
    assert trainer.ready.label_counts == (14, 13, 13, 0, 0, 0, 0, 0, 0, 0)
    assert trainer.ready.num_parameters == ShareTrainer(SCENARIO, 0, DEALT).ready.num_parameters
    assert trainer.train(TrainOrder(1, 1, b"")).model is not None


def test_data_that_do_not_fit_are_refused_in_one_line(tmp_path):
    with pytest.raises(BadData, match="12 labels, expected at most 10"):
        ShareTrainer(SCENARIO, 0, write_data(tmp_path / "own.npz", 12))
    with pytest.raises(BadData, match="client 8 of 8"):
        ShareTrainer(SCENARIO, 8, DEALT)
