"""What the explorer was asked for: first paint, pages that never stall, little memory, many viewers for little."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import psutil
from playwright.sync_api import Browser, Page

from benchmarks.explorer.large_folders import large_scenario, write_large_run, write_long_record
from benchmarks.explorer.viewers import watching
from benchmarks.results import Result, make_result
from tests.browser.chromium import MISSING, find_browser
from tests.browser.explorer_process import Explorer, explore
from tests.browser.folders import RunWriter
from tests.browser.looking import Look, open_browser, open_look

Report = Callable[[str], None]
PAINT_ASKED_MS = 1000.0
STALL_ASKED_MS = 100.0
MEMORY_ASKED_MB = 60.0
VIEWERS_ASKED = 10.0
NUM_VIEWERS = 50
_MB = 1e6
_WARM_UP_S = 3.0

# Long tasks (over 50 ms) and gaps between frames, while `isOn`.
_WATCH_STALLS = """
window.stalls = {tasks: [], gaps: [], isOn: false};
new PerformanceObserver((list) => {
  if (window.stalls.isOn) for (const entry of list.getEntries()) window.stalls.tasks.push(entry.duration);
}).observe({type: "longtask"});
let before = 0;
const frame = (now) => {
  if (window.stalls.isOn && before) window.stalls.gaps.push(now - before);
  before = now;
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
"""
_IS_DRAWN = """() => {
  const tiles = document.querySelectorAll("a.block-tile:not(.loading)").length;
  const canvases = [...document.querySelectorAll("main canvas")];
  return tiles > 0 && canvases.length > 0 && !document.querySelector("[aria-busy='true']") && performance.now();
}"""
_PAINT = "() => performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint')?.startTime"


class NoBrowser(Exception):
    """A benchmark in a browser on a machine without one."""


@dataclass(frozen=True)
class PaintRow:
    """Opening the overview in a fresh browser context, ms from the navigation's beginning."""

    case: str
    blocks: int
    clients: int
    openings: int
    first_paint_ms: float
    worst_first_paint_ms: float
    filled_ms: float
    worst_filled_ms: float
    asked_ms: float


@dataclass(frozen=True)
class StallRow:
    """An action repeated on the overview of a long record: the longest time the page stood still."""

    action: str
    rounds: int
    times: int
    long_tasks: int
    longest_task_ms: float
    longest_frame_gap_ms: float
    asked_ms: float


@dataclass(frozen=True)
class CostRow:
    """What the server took; its helper process (what-if, verification) is counted apart."""

    what: str
    found: float
    unit: str
    asked: float | None


@dataclass(frozen=True)
class Plan:
    """How large everything is."""

    num_blocks: int
    num_rounds: int
    openings: int
    repeats: int
    viewing_s: float


FULL = Plan(num_blocks=1000, num_rounds=100_000, openings=7, repeats=20, viewing_s=20.0)
QUICK = Plan(num_blocks=100, num_rounds=10_000, openings=2, repeats=4, viewing_s=5.0)


def measure(plan: Plan, report: Report) -> list[Result]:
    """Tables of opening, stalls and cost, in the browser that is found."""
    path = find_browser()
    if path is None:
        raise NoBrowser(MISSING)
    with open_browser(path) as browser:
        return measure_explorer(plan, report, browser)


def measure_explorer(plan: Plan, report: Report, browser: Browser) -> list[Result]:
    """Likewise, in this browser."""
    with tempfile.TemporaryDirectory(prefix="bdfl-explorer-") as place:
        folder = Path(place)
        costs: list[CostRow] = []
        report("explorer: opening a chain")
        paints = [_measure_opening(browser, write_large_run(folder / "chain", plan.num_blocks, report), plan, costs)]
        report("explorer: a long record")
        stalls = _measure_stalls(browser, write_long_record(folder / "record", plan.num_rounds), plan, costs)
        report("explorer: viewers")
        costs += _measure_viewers(folder / "growing", plan)
    version = browser.version
    return [
        make_result(
            "explorer-opening",
            "Opening the overview",
            paints,
            [
                f"Chromium {version} without a window, no cache, on loopback; medians over openings.",
                "Filled: the ribbon and all curves are drawn.",
            ],
        ),
        make_result(
            "explorer-stalls",
            "A long record: the longest time that the page stood still",
            stalls,
            [
                "Long tasks are those over 50 ms that the browser reports; 0 ms: there was none.",
                "Frame gaps are those between two animation frames; a screen's own is 17 ms.",
            ],
        ),
        make_result("explorer-cost", "What the server takes", costs, ["Memory is the resident set of the process."]),
    ]


def _measure_opening(browser: Browser, run: Path, plan: Plan, costs: list[CostRow]) -> PaintRow:
    began_s = time.perf_counter()
    with explore(run) as served:
        costs.append(CostRow("start until it answers, chain", time.perf_counter() - began_s, "s", None))
        paints, filled = [], []
        for _ in range(plan.openings):
            look = open_look(browser, served.origin)
            look.page.goto(served.origin + "/", wait_until="commit")
            filled.append(float(look.page.wait_for_function(_IS_DRAWN).json_value()))
            paints.append(float(look.page.evaluate(_PAINT)))
            _close(look)
        _visit_all_pages(browser, served, plan.num_blocks)
        costs += _memory(served.pid, "chain, all pages seen")
    scenario = large_scenario(plan.num_blocks)
    return PaintRow(
        case="chain",
        blocks=plan.num_blocks,
        clients=scenario.clients.count,
        openings=plan.openings,
        first_paint_ms=median(paints),
        worst_first_paint_ms=max(paints),
        filled_ms=median(filled),
        worst_filled_ms=max(filled),
        asked_ms=PAINT_ASKED_MS,
    )


def _visit_all_pages(browser: Browser, served: Explorer, height: int) -> None:
    look = open_look(browser, served.origin)
    pages = (
        "/network",
        "/blocks",
        f"/block/{height}",
        "/client/0",
        f"/model/{height}",
        f"/what-if/{height}",
        "/compare",
    )
    for path in pages:
        look.open(path)
    _close(look)


def _measure_stalls(browser: Browser, record: Path, plan: Plan, costs: list[CostRow]) -> list[StallRow]:
    began_s = time.perf_counter()
    with explore(record) as served:
        costs.append(CostRow("start until it answers, record", time.perf_counter() - began_s, "s", None))
        look = open_look(browser, served.origin)
        look.page.add_init_script(_WATCH_STALLS)
        look.page.goto(served.origin + "/", wait_until="commit")
        look.page.wait_for_function(_IS_DRAWN)
        actions = {
            "scroll the ribbon": _scroll_ribbon,
            "move the cursor over the curves": _move_cursor,
            "zoom into a curve and out again": _zoom,
            "drag the slider": _drag_slider,
        }
        rows = [_measure_action(look.page, name, action, plan) for name, action in actions.items()]
        costs += _memory(served.pid, "record, scrolled and zoomed")
        _close(look)
    return rows


def _measure_action(page: Page, name: str, action: Callable[[Page, int], None], plan: Plan) -> StallRow:
    page.evaluate("() => { window.stalls.tasks = []; window.stalls.gaps = []; window.stalls.isOn = true; }")
    for number in range(plan.repeats):
        action(page, number)
    found = page.evaluate("() => { window.stalls.isOn = false; return window.stalls; }")
    return StallRow(
        action=name,
        rounds=plan.num_rounds,
        times=plan.repeats,
        long_tasks=len(found["tasks"]),
        longest_task_ms=max(found["tasks"], default=0.0),
        longest_frame_gap_ms=max(found["gaps"], default=0.0),
        asked_ms=STALL_ASKED_MS,
    )


def _scroll_ribbon(page: Page, number: int) -> None:
    box = page.locator(".ribbon-scroll").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    for _ in range(10):
        page.mouse.wheel(-3000 if number % 4 < 2 else 3000, 0)
        _let_frames_pass(page)


def _move_cursor(page: Page, number: int) -> None:
    left, top, width, height = _first_chart(page)
    for step in range(20):
        page.mouse.move(left + width * (step + 1) / 22, top + height * (0.3 + 0.1 * (number % 5)))
        _let_frames_pass(page)


def _zoom(page: Page, number: int) -> None:
    left, top, width, height = _first_chart(page)
    share = 0.1 + 0.05 * (number % 10)
    page.mouse.move(left + width * share, top + height / 2)
    page.mouse.down()
    page.mouse.move(left + width * (share + 0.2), top + height / 2, steps=8)
    page.mouse.up()
    _let_frames_pass(page, 30)
    page.mouse.dblclick(left + width / 2, top + height / 2)
    _let_frames_pass(page, 30)


def _drag_slider(page: Page, number: int) -> None:
    box = page.locator(".replay-slider").bounding_box()
    assert box is not None
    begin, end = (0.9, 0.3) if number % 2 else (0.3, 0.9)
    page.mouse.move(box["x"] + box["width"] * begin, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * end, box["y"] + box["height"] / 2, steps=20)
    page.mouse.up()
    _let_frames_pass(page, 10)


def _first_chart(page: Page) -> tuple[float, float, float, float]:
    chart = page.locator("main .u-over").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    return box["x"], box["y"], box["width"], box["height"]


def _let_frames_pass(page: Page, count: int = 2) -> None:
    page.evaluate(
        "(count) => new Promise((done) => { const next = () => (count-- > 0 ? requestAnimationFrame(next) : done());"
        " next(); })",
        count,
    )


def _measure_viewers(folder: Path, plan: Plan) -> list[CostRow]:
    """The share of a core that the server takes while blocks come once a second and fifty watch."""
    num_rounds = int(plan.viewing_s + 60)
    with RunWriter(folder, large_scenario(num_rounds)) as writer:
        for _ in range(5):
            writer.write_round()
        with explore(folder) as served:
            address = urlsplit(served.origin)
            assert address.hostname is not None
            assert address.port is not None
            with watching(address.hostname, address.port, NUM_VIEWERS) as viewers:
                _write_for(writer, _WARM_UP_S)
                before = [viewer.num_blocks for viewer in viewers]
                began_cpu_s, began_s = _cpu_s(served.pid), time.perf_counter()
                num_written = _write_for(writer, plan.viewing_s)
                took_s, used_s = time.perf_counter() - began_s, _cpu_s(served.pid) - began_cpu_s
                told = [viewer.num_blocks - was for viewer, was in zip(viewers, before, strict=True)]
            memory = _memory(served.pid, f"{NUM_VIEWERS} viewers")
    return [
        CostRow(
            f"{NUM_VIEWERS} viewers, a block a second: share of a core",
            100 * used_s / took_s,
            "%",
            VIEWERS_ASKED,
        ),
        CostRow(f"blocks written in {took_s:.0f} s", num_written, "blocks", None),
        CostRow("blocks that the worst viewer was told of meanwhile", min(told), "blocks", None),
        *memory,
    ]


def _write_for(writer: RunWriter, seconds: float) -> int:
    """Writes a block every second."""
    began_s, count = time.perf_counter(), 0
    while (left_s := began_s + count - time.perf_counter()) < 1.0 and count < seconds:
        time.sleep(max(0.0, left_s))
        writer.write_round()
        count += 1
    time.sleep(max(0.0, began_s + seconds - time.perf_counter()))
    return count


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _memory(pid: int, case: str) -> list[CostRow]:
    process = psutil.Process(pid)
    rows = [CostRow(f"memory, {case}", process.memory_info().rss / _MB, "MB", MEMORY_ASKED_MB)]
    helpers = [child.memory_info().rss / _MB for child in process.children(recursive=True)]
    return rows + ([CostRow(f"memory of its helper, {case}", sum(helpers), "MB", None)] if helpers else [])


def _close(look: Look) -> None:
    look.page.context.close()
    assert look.unexpected == [], look.unexpected
