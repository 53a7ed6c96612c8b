"""The engine ray, on a real cluster of two nodes of which one is killed: the bytes of the engine local."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from bdfl.errors import MissingExtra
from bdfl.experiment.run_folder import create_run_folder
from bdfl.experiment.training_run import prepare_run, train_run
from bdfl.learning.personal import PERSONAL_FOLDER
from bdfl.learning.trainer_pool import open_trainer
from bdfl.learning.training import InvalidTraining
from bdfl.ray_cluster import NoCluster, find_difference, list_software, open_ray
from bdfl.records.learning import FINAL_MODEL
from bdfl.scenario import load_scenario, override_scenario
from bdfl.scenario.files import find_scenario
from bdfl.sweeps.plan import load_sweep
from bdfl.sweeps.results import POINTS_FILE
from tests.sweeps.small_sweeps import LASTING, LEARNING, SMALL

ROOT = Path(__file__).parents[2]
PATIENCE_S = 800


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory):
    """The folder that work on two nodes has left, and the folder the cluster lived in."""
    folder = tmp_path_factory.mktemp("two-nodes")
    (folder / "sweep.toml").write_text(LASTING)
    (folder / "small.toml").write_text(SMALL)
    place = tempfile.mkdtemp(prefix="bdfl-", dir="/tmp")  # sockets need a short path
    environment = os.environ | {
        "RAY_TMPDIR": place,
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.sweeps.on_two_nodes", str(folder)],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    finally:
        left = end_processes(place)
        shutil.rmtree(place, ignore_errors=True)
    assert process.returncode == 0, output[-3000:]
    return folder, left


def end_processes(place):
    """Ends what still lives in the cluster's folder, after a moment of grace; how many had to be ended."""
    deadline = time.monotonic() + 60
    while (found := processes_in(place)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return len(found)


def processes_in(place):
    """Processes whose environment says that they belong to this cluster."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if place.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at /proc")


def test_a_sweep_that_was_interrupted_and_lost_a_node_ends_in_the_bytes_of_the_engine_local(
    two_nodes, play_sweep, tmp_path
):
    folder, _ = two_nodes
    found = json.loads((folder / "found.json").read_text())
    assert (found["cpus"], found["cpus_left"]) == (2, 1)
    assert found["lost"] >= 1
    assert found["failed"] == 0
    assert found["before"] > 0
    assert found["before"] + found["computed"] == 80
    _, expected = play_sweep(load_sweep(folder / "sweep.toml"), tmp_path / "out")
    assert (folder / "out" / POINTS_FILE).read_bytes() == expected


def test_clients_trained_on_two_nodes_of_which_one_seat_is_killed_give_the_same_model(two_nodes, tmp_path):
    folder, _ = two_nodes
    federated = prepare_run(load_scenario(find_scenario("minimal"), LEARNING))
    with (
        open_trainer(federated.scenario, federated.data, federated.partition) as trainer,
        create_run_folder(tmp_path / "run", federated.scenario) as run,
    ):
        train_run(federated, trainer, run)
    personal = [path.relative_to(tmp_path / "run") for path in (tmp_path / "run" / PERSONAL_FOLDER).glob("*/*")]
    assert personal
    for name in ("journal.jsonl", FINAL_MODEL, *personal):
        for place in ("run", "run-by-command"):
            assert (folder / place / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_the_command_sweeps_on_the_cluster_that_it_is_told_of(two_nodes, play_sweep, tmp_path):
    folder, _ = two_nodes
    _, expected = play_sweep(load_sweep(folder / "small.toml"), tmp_path / "out")
    assert (folder / "by-command" / POINTS_FILE).read_bytes() == expected


def test_no_process_is_left(two_nodes):
    assert two_nodes[1] == 0


def test_other_software_is_told_in_one_line():
    here = list_software(False)
    assert find_difference(here) is None
    assert [name for name, _ in here] == ["Python", "bdfl", "bdfl's code", "numpy", "scipy"]
    other = tuple((name, "0.1" if name == "numpy" else version) for name, version in here)
    line = find_difference(other)
    assert line is not None
    assert "expected 0.1 as here" in line


def test_without_ray_the_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"the engine ray needs Ray: pip install .*\[ray\]"), open_ray(None):
        pass


def test_an_address_where_nobody_answers_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(NoCluster) as caught, open_ray(f"ray://somebody:secret@{address}"):
        pass
    assert str(caught.value).startswith(f"ray: {address}: ")
    assert "a Ray cluster expected" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_ipv6_address_in_brackets_is_no_name_to_look_up():
    with pytest.raises(NoCluster) as caught, open_ray("ray://[::1]:1"):
        pass
    assert isinstance(caught.value.__cause__, OSError)
    assert not isinstance(caught.value.__cause__, socket.gaierror)


def test_a_vectorised_run_is_not_for_ray():
    from bdfl.learning.trainer_pool import open_ray_trainer

    scenario = override_scenario(load_scenario(find_scenario("minimal")), ["learning.engine=vmap"])
    federated = prepare_run(scenario)
    with (
        pytest.raises(InvalidTraining, match="loop expected with Ray"),
        open_ray_trainer(scenario, federated.data, federated.partition, address=None),
    ):
        pass
