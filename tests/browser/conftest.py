"""One browser for all tests of a file, a fresh page for each, and folders to look at."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.browser.chromium import MISSING, find_browser, is_required
from tests.browser.explorer_process import Explorer, explore
from tests.browser.folders import write_run
from tests.browser.looking import Browser, Look, open_browser, open_look

Looking = Callable[..., Look]
Serving = Callable[..., Explorer]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test whose browser's process ended under it is played once more: browsers crash, now and then, by themselves.

    A page that brings it down does so again. Whatever else fails, a page that crashes included, fails at once.
    """
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=["TargetClosedError"]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says of all tests without a browser that they were skipped here, so that they are one line in the summary."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and MISSING in report.longrepr[2]:
        report.longrepr = (str(Path(__file__).relative_to(item.config.rootpath)), 1, report.longrepr[2])
    return report


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Where the browser is; tests that need one do not run without."""
    path = find_browser()
    if path is None:
        if is_required():
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)
    return path


@pytest.fixture(scope="module")
def find_open(chromium: Path) -> Iterator[Callable[[], Browser]]:
    """Gives the browser of a file, started anew if its process has ended.

    It is closed after each file: as long as it is open, this thread runs Playwright's event loop and can run no other.
    """
    with ExitStack() as stack:
        opened: list[Browser] = []

        def find() -> Browser:
            if not opened or not opened[-1].is_connected():
                stack.close()
                opened.append(stack.enter_context(open_browser(chromium)))
            return opened[-1]

        yield find


@pytest.fixture
def browser(find_open: Callable[[], Browser]) -> Browser:
    return find_open()


@pytest.fixture
def running(browser: Browser) -> Iterator[ExitStack]:
    """What runs until all pages of a test are closed."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def look(browser: Browser, running: ExitStack) -> Iterator[Looking]:
    """Opens pages; at the end none of them may have complained of anything unexpected."""
    looks: list[Look] = []

    def open_one(origin: str, **settings: object) -> Look:
        looks.append(open_look(browser, origin, **settings))  # type: ignore[arg-type]
        return looks[-1]

    yield open_one
    for one in looks:
        one.page.context.close()
    assert [text for one in looks for text in one.unexpected] == []


@pytest.fixture
def serve(running: ExitStack) -> Serving:
    """Starts explorers that end with the test."""
    return lambda *arguments: running.enter_context(explore(*arguments))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explored")


@pytest.fixture(scope="session")
def run(folders: Path) -> Path:
    """A finished run."""
    return write_run(folders / "digits")


@pytest.fixture(scope="session")
def other_run(folders: Path) -> Path:
    """The same rounds under another scheduler."""
    return write_run(folders / "digits-exact", 'scheduler.name="exact"')


@pytest.fixture(scope="session")
def explorer(chromium: Path, run: Path, other_run: Path) -> Iterator[Explorer]:
    """Both runs, served for all tests that change nothing."""
    with explore(run, other_run) as served:
        yield served
