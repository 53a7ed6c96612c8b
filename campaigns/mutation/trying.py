"""Run the tests that may notice a mutant: the likeliest first, each batch in a process of its own."""

import ast
import contextlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from campaigns.mutation.loading import load_changed, mark_statements, watch
from campaigns.mutation.operators import Mutant, mutate

FIRST_BATCH = 40  # the likeliest tests: they catch most mutants with few imports
_BASE_S = 20.0  # for imports, regardless of the tests
_FACTOR = 3.0  # limit as a multiple of the normal test time: beyond it a mutant hangs
_WAITING = 6.0  # wall-clock limit as a multiple of the CPU limit, since the machine is shared
_MEMORY_BYTES = 12 * 2**30
_FAILED = 99  # exit code of an internal error, not a verdict of the tests
_NO_TESTS = int(pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True)
class TestRun:
    """Duration and executed statements of one test in the recorded run."""

    seconds: float
    seen: frozenset[str]  # statements, as module:line


@dataclass(frozen=True)
class Verdict:
    """Result for a mutant: `by` is the test that noticed, or the cause of its end."""

    mutant: Mutant
    is_caught: bool
    by: str
    num_tests: int
    seconds: float

    def to_json(self) -> str:
        return json.dumps({**asdict(self.mutant), "caught": self.is_caught, "by": self.by,
                           "tests": self.num_tests, "seconds": round(self.seconds, 2)})  # fmt: skip


def read_verdict(line: str) -> Verdict:
    found = json.loads(line)
    mutant = Mutant(*(found[name] for name in ("module", "line", "text", "operator", "change", "place")))
    return Verdict(mutant, found["caught"], found["by"], found["tests"], found["seconds"])


class _Chosen:
    """A pytest plugin that runs only these tests in this order, and reports the one that failed."""

    def __init__(self, names: Sequence[str], answer: int) -> None:
        self._order = {name: number for number, name in enumerate(names)}
        self._answer = answer

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._order), key=lambda i: self._order[i.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._answer, report.nodeid.encode()[:500])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os.write(self._answer, f"import of {report.nodeid}".encode()[:500])


class _Recording:
    """A pytest plugin that records duration and executed statements of every passing test."""

    def __init__(self, seen: set[str]) -> None:
        self._seen = seen
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self._has_failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._seen.clear()
        self._has_failed, start = False, time.perf_counter()
        done = yield
        if not self._has_failed:
            self.tests[item.nodeid] = round(time.perf_counter() - start, 4), sorted(self._seen)
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._has_failed |= report.failed or report.skipped


def record_tests(sources: Mapping[str, str], paths: Sequence[str], out: Path) -> None:
    """Run the tests once in a process of its own, and record what each executes; failing tests are left out."""

    def record() -> int:
        seen = watch()
        load_changed({module: mark_statements(module, source) for module, source in sources.items()})
        recording = _Recording(seen)
        pytest.main([*_options(), *paths], plugins=[recording])
        known = json.loads(out.read_text("utf-8")) if out.exists() else {}
        files = {name.partition("::")[0] for name in recording.tests}
        kept = {name: found for name, found in known.items() if name.partition("::")[0] not in files}
        out.write_text(json.dumps({**kept, **recording.tests}), "utf-8")
        return 0

    _in_child(record, cpu_s=3600.0, is_quiet=False)


def read_recording(path: Path) -> dict[str, TestRun]:
    found = json.loads(path.read_text("utf-8"))
    return {name: TestRun(seconds, frozenset(seen)) for name, (seconds, seen) in found.items()}


def choose_tests(
    mutant: Mutant, tests: Mapping[str, TestRun], budget_s: float, proven: Sequence[str] = ()
) -> list[list[str]]:
    """Choose batches of tests: the likeliest that execute the mutant's statement, then more of them and of their files.

    Those `proven` by other mutants of the module come first, then those that are quick and execute little. A fixture
    may be executed by one test and checked by another of the same file. A statement executed only on import is tried
    with all tests of its module and package, and with those that execute nothing themselves.
    """
    place = f"{mutant.module}:{mutant.line}"
    near = {name for name, test in tests.items() if place in test.seen}
    if not near:
        folders = tuple(f"tests/{package}/" for package in mutant.module.split(".")[1:-1])
        near = {name for name, test in tests.items() if not test.seen or name.startswith(folders)}
        near |= {name for name, test in tests.items() if any(one.startswith(f"{mutant.module}:") for one in test.seen)}
    if not near:
        near = set(tests)
    files = {name.partition("::")[0] for name in near}
    beside = {name for name in tests if name.partition("::")[0] in files} - near

    def effort(name: str) -> float:
        return tests[name].seconds * (1 + len(tests[name].seen))

    likely = [name for name in proven if name in near]
    spent_s = 0.0
    chosen: list[str] = []
    for name in dict.fromkeys([*likely, *sorted(near, key=effort), *sorted(beside, key=effort)]):
        if not chosen or spent_s + tests[name].seconds <= budget_s:
            spent_s += tests[name].seconds
            chosen.append(name)
    return [batch for batch in (chosen[:FIRST_BATCH], chosen[FIRST_BATCH:]) if batch]


def try_mutant(
    mutant: Mutant, source: str, tests: Mapping[str, TestRun], budget_s: float, proven: Sequence[str] = ()
) -> Verdict:
    """Run batch after batch until a test fails or the budget is spent."""
    start, num_tests = time.perf_counter(), 0
    for batch in choose_tests(mutant, tests, budget_s, proven):
        num_tests += len(batch)
        tree = mutate(source, mutant.place)
        code, said = run_tests({mutant.module: tree}, batch, sum(tests[name].seconds for name in batch))
        if code:
            by = said or ("time" if code < 0 else f"exit code {code}")
            return Verdict(mutant, True, by, num_tests, time.perf_counter() - start)
    return Verdict(mutant, False, "", num_tests, time.perf_counter() - start)


def run_tests(trees: Mapping[str, ast.Module], names: Sequence[str], normal_s: float) -> tuple[int, str]:
    """Run these tests; return the exit code (0: all pass, negative: a signal) and the test that failed."""

    def run(answer: int) -> int:
        load_changed(trees)
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        code = int(pytest.main([*_options(), "-x", *files], plugins=[_Chosen(names, answer)]))
        if code == _NO_TESTS:
            raise RuntimeError(f"no tests among {names[:3]}")
        return code

    return _in_child(run, cpu_s=_BASE_S + _FACTOR * normal_s, takes_answer=True)


def _options() -> list[str]:
    ignored = "ignore::pytest.PytestAssertRewriteWarning"  # about modules imported before the fork
    return ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-W", ignored]


def _in_child(
    function: Callable[..., int], *, cpu_s: float, is_quiet: bool = True, takes_answer: bool = False
) -> tuple[int, str]:
    """Run a function in a forked process; return its result, or minus the signal that ended it, and its message."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = _FAILED
        try:
            os.close(reader)
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 3))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            if is_quiet:
                nowhere = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(nowhere, stream)
            code = function(writer) if takes_answer else function()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    try:
        code = _wait(child, _WAITING * cpu_s)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)  # processes left behind by a test
    if code == _FAILED:
        raise RuntimeError("a process failed before or after its tests")
    with os.fdopen(reader, "rb") as said:
        return code, said.read().decode(errors="replace").partition("\n")[0]


def _wait(child: int, wall_s: float) -> int:
    end = time.monotonic() + wall_s
    pause_s = 0.005
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -int(signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(0.1, pause_s * 1.5)


def try_all(
    mutants: Iterable[Mutant],
    sources: Mapping[str, str],
    tests: Mapping[str, TestRun],
    journal: Path,
    *,
    workers: int,
    budget_s: float,
) -> None:
    """Try the mutants and append a line for each to the journal; workers are forked from this process."""
    todo = list(mutants)
    for batch in choose_tests(todo[0], tests, budget_s) if todo else ():
        code, said = run_tests({}, batch, sum(tests[name].seconds for name in batch))
        if code:
            raise RuntimeError(f"exit code {code} without any mutant: {said}")
    children = []
    for number in range(workers):
        child = os.fork()
        if child == 0:
            proven: dict[str, list[str]] = defaultdict(list)  # by module, the newest first
            code = _FAILED
            try:
                for mutant in todo[number::workers]:
                    known = proven[mutant.module]
                    verdict = try_mutant(mutant, sources[mutant.module], tests, budget_s, known)
                    _append(journal, verdict.to_json())
                    if verdict.by in tests:
                        proven[mutant.module] = list(dict.fromkeys([verdict.by, *known]))[:FIRST_BATCH]
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise RuntimeError(f"workers ended with {codes}, the journal has what they tried before")


def _append(journal: Path, line: str) -> None:
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{line}\n".encode())  # a single write: two workers append
    os.close(file)
