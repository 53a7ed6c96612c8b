"""Looking at pages: a browser, pages that tell on themselves, and what a person would notice in them."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Request, Response, expect, sync_playwright

WIDE, NARROW = (1440, 900), (390, 844)
SCHEMES = ("light", "dark")
PATIENCE_MS = 120_000  # a busy machine with two cores
_FLAGS = ("--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--mute-audio")
_TELL_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error("content security policy: " + event.violatedDirective + " " + event.blockedURI);
});
"""


@contextmanager
def open_browser(path: Path) -> Iterator[Browser]:
    """The browser at `path`, without a window."""
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass(eq=False)
class Look:
    """A page in a browser that writes down everything that goes wrong in it."""

    page: Page
    origin: str  # scheme, host and port that it may speak with; file:// likewise
    complaints: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)  # parts of complaints that a test expects

    def __post_init__(self) -> None:
        page = self.page
        page.on("console", lambda message: self._hear(message.type, message.text, message.location))
        page.on("pageerror", lambda error: self.complaints.append(f"error in the page: {error}"))
        page.on("dialog", self._dismiss)
        page.on("request", self._see_request)
        page.on("requestfailed", self._see_failure)
        page.on("response", self._see_response)

    def open(self, path: str) -> "Look":
        """Goes to a path of the explorer and waits until the page is filled."""
        self.page.goto(self.origin + path, wait_until="domcontentloaded")
        self.wait_until_filled()
        return self

    def wait_until_filled(self) -> None:
        """Waits until the page has its heading and nothing in it is still loading."""
        self.page.wait_for_function(_IS_FILLED)

    def wait_until_still(self) -> None:
        """Waits until the page is filled and its text has stayed the same for half a second of frames."""
        self.wait_until_filled()
        self.page.wait_for_function(_IS_STILL)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Waits until something outside the page's scripts is so; fails with what it is otherwise."""
        deadline_s = time.monotonic() + PATIENCE_MS / 1000
        while not is_so():
            assert time.monotonic() < deadline_s, f"{what}: not so; complaints: {self.complaints}"
            self.page.wait_for_timeout(50)  # lets the browser's events come in

    def allow(self, *parts: str) -> None:
        """Complaints with one of these parts are what the test is about."""
        self.allowed += parts

    @property
    def unexpected(self) -> list[str]:
        return [text for text in self.complaints if not any(part in text for part in self.allowed)]

    def _hear(self, kind: str, text: str, location: Any) -> None:
        if kind in ("error", "warning", "assert"):
            self.complaints.append(f"console {kind}: {text} ({location.get('url', '')})")

    def _dismiss(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _see_request(self, request: Request) -> None:
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.complaints.append(f"request elsewhere: {request.url}")

    def _see_failure(self, request: Request) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # what the page itself gave up, such as by going on
            self.complaints.append(f"request failed: {request.url}: {request.failure}")

    def _see_response(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"answer {response.status}: {response.url}")


def open_look(
    browser: Browser,
    origin: str,
    *,
    size: tuple[int, int] = WIDE,
    scheme: str = "light",
    reduced_motion: bool = False,
    bypass_csp: bool = False,
) -> Look:
    """A fresh page as wide and high as given."""
    context: BrowserContext = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce" if reduced_motion else "no-preference",
        bypass_csp=bypass_csp,
        locale="en-GB",
        timezone_id="UTC",
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_TELL_VIOLATIONS)
    return Look(context.new_page(), origin)


_IS_FILLED = """() => {
  const main = document.querySelector("main");
  return main && main.querySelector("h1") && !document.querySelector("[aria-busy='true']");
}"""


_IS_STILL = """() => new Promise((done) => {
  let last = "", count = 0;
  const look = () => {
    const text = document.body.innerText;
    count = text === last ? count + 1 : 0;
    last = text;
    if (count >= 30) done(true);
    else requestAnimationFrame(look);
  };
  look();
})"""


# What a person would notice

_NOTICING = Path(__file__).with_name("noticing.js").read_text(encoding="utf-8")


def _ask(page: Page, question: str) -> Any:
    return page.evaluate(f"({_NOTICING.strip()}).{question}()")


def find_overflow(page: Page) -> list[str]:
    """Everything that is wider than the page, or whose text is cut off."""
    return list(_ask(page, "findOverflow"))


def find_accessibility(page: Page, impacts: Sequence[str] = ("serious", "critical")) -> list[str]:
    """What axe-core finds of such impact: rule, and the element with why."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {json.dumps(node['target'])}: {node['failureSummary'].splitlines()[-1].strip()}"
        for violation in found["violations"]
        if violation["impact"] in impacts
        for node in violation["nodes"]
    ]


def walk_by_keyboard(page: Page, most: int = 400) -> list[str]:
    """Tabs through the whole page; what cannot be reached, or has no visible focus."""
    _ask(page, "forgetFocus")
    found: list[str] = []
    for _ in range(most):
        page.keyboard.press("Tab")
        focused = _ask(page, "lookAtFocus")
        if focused is None or focused["isAgain"]:
            break
        if not focused["isVisible"]:
            found.append(f"no visible focus: {focused['name']}")
        if not focused["isSeen"]:
            found.append(f"focus on nothing visible: {focused['name']}")
    else:
        found.append(f"more than {most} stops")
    return found + [f"not reached: {one}" for one in _ask(page, "findUnvisited")]
