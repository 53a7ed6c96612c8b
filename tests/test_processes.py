"""The processes behind sweeps and training: how many threads they use, that they end, and that a lost one is told."""

import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children

import pytest

from bdfl.experiment.parallel import SweepFailed, map_parallel
from bdfl.processes import open_process_pool


def test_the_environment_of_workers_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    with open_process_pool(1, threads=3) as executor:
        assert executor.submit(os.getenv, "OMP_NUM_THREADS").result() == "3"
        assert executor.submit(os.getenv, "MKL_NUM_THREADS").result() == "7"
    assert "OMP_NUM_THREADS" not in os.environ


def test_workers_are_gone_after_the_block_however_it_is_left() -> None:
    before = set(active_children())
    with open_process_pool(2) as executor:
        assert executor.submit(abs, -1).result() == 1
        assert len(set(active_children()) - before) == 2
    assert set(active_children()) <= before
    with pytest.raises(ZeroDivisionError), open_process_pool(2) as executor:
        raise ZeroDivisionError
    assert set(active_children()) <= before


def test_ctrl_c_is_not_for_workers() -> None:
    with open_process_pool(1) as executor:
        pid = executor.submit(os.getpid).result()
        os.kill(pid, signal.SIGINT)
        assert executor.submit(os.getpid).result() == pid


def test_a_lost_worker_is_told_in_one_line() -> None:
    with pytest.raises(SweepFailed, match="ended by itself"):
        map_parallel(_end_on_three, range(6), workers=2)
    with open_process_pool(1) as executor, pytest.raises(BrokenProcessPool):
        executor.submit(os._exit, 1).result()


def test_what_a_task_raises_is_raised_here_and_the_rest_is_not_computed() -> None:
    with pytest.raises(ValueError, match="three"):
        map_parallel(_fail_on_three, range(1_000), workers=2)


def _end_on_three(task: int) -> int:
    if task == 3:
        os._exit(1)
    return task


def _fail_on_three(task: int) -> int:
    if task == 3:
        raise ValueError("three")
    return task


def test_the_limit_on_open_files_is_raised_to_the_hard_one():
    code = (
        "import resource; from bdfl.processes import raise_file_limit\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); raise_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
