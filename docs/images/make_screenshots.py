"""The pictures of docs/images/explorer: every page at two sizes, light and dark.

`make screenshots` writes them. The runs shown are the quick start and the same rounds under `exact`; both, and with
them what the pages show, come out the same each time.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from tests.browser.chromium import MISSING, find_browser
from tests.browser.explorer_process import explore
from tests.browser.looking import NARROW, SCHEMES, WIDE, Look, open_browser, open_look

FOLDER = Path(__file__).parent / "explorer"
SIZES = {"wide": WIDE, "narrow": NARROW}
NUM_COLOURS = 256
# By name: the page, with the run as far as it then was.
PAGES = {
    "overview": "/",
    "overview-replay": "/?at=12",
    "network": "/network?at=12",
    "blocks": "/blocks",
    "block": "/block/12",
    "client": "/client/2",
    "model": "/model/12?without=2&other=6",
    "what-if": "/what-if/12",
    "compare": "/compare",
}
# Of these pages, what is below the first screen is shown too.
LONG = ("overview", "block", "what-if")


def main() -> None:
    path = find_browser()
    if path is None:
        sys.exit(MISSING)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bdfl-pictures-") as place, open_browser(path) as browser:
        runs = [make_run(Path(place) / name, name) for name in ("drc", "exact")]
        with explore(*runs) as served:
            written = [save(name, picture) for name, picture in take_all(browser, served.origin)]
    for old in set(FOLDER.glob("*.png")) - set(written):
        old.unlink()
    print(f"wrote {len(written)} pictures, {sum(one.stat().st_size for one in written) / 1e6:.1f} MB, to {FOLDER}")


def make_run(folder: Path, scheduler: str) -> Path:
    """The quick start under a scheduler."""
    command = [sys.executable, "-m", "bdfl.cli", "run", "quickstart", "--scheduler", scheduler, "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def take_all(browser: Browser, origin: str) -> Iterator[tuple[str, bytes]]:
    """Names and pictures; a page that complains ends it."""
    for size_name, size in SIZES.items():
        for scheme in SCHEMES:
            look = open_look(browser, origin, size=size, scheme=scheme, reduced_motion=True)
            for name, path in PAGES.items():
                look.open(path)
                settle(look)
                yield f"{name}-{size_name}-{scheme}", look.page.screenshot(animations="disabled")
                if name in LONG and scheme == "light":
                    yield f"{name}-whole-{size_name}-{scheme}", whole_page(look)
            look.page.context.close()
            assert look.unexpected == [], look.unexpected


def whole_page(look: Look) -> bytes:
    """The page from top to bottom, in a window as high as the page."""
    page = look.page
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({**size, "height": page.evaluate("() => document.documentElement.scrollHeight")})
    settle(look)
    taken = page.screenshot(animations="disabled")
    page.set_viewport_size(size)
    return taken


def settle(look: Look) -> None:
    """Waits until nothing is fetched and nothing is drawn any more."""
    look.page.mouse.move(0, 0)
    look.page.evaluate("() => document.fonts.ready")
    look.wait_until_still()


def save(name: str, picture: bytes) -> Path:
    """The picture with a palette of its own, which is a quarter of the size and looks the same."""
    path = FOLDER / f"{name}.png"
    with Image.open(BytesIO(picture)) as image:
        small = image.convert("RGB").quantize(NUM_COLOURS, kmeans=2, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
    return path


if __name__ == "__main__":
    main()
