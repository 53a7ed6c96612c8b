"""The documentation site in a browser, from a disk: it fetches nothing from elsewhere, fits a phone, finds things."""

from pathlib import Path

import pytest

from tests.browser.conftest import Looking
from tests.browser.looking import NARROW, WIDE, Look
from tests.built_site import find_site

PAGES = ("index.html", "tutorial.html", "mathematics.html", "architecture.html", "reference/scheduling.html")
_HOW_MUCH_WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return find_site(tmp_path_factory)


def open_page(look: Looking, site: Path, size: tuple[int, int], scheme: str) -> Look:
    return look(site.as_uri(), size=size, scheme=scheme, reduced_motion=True)


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_pages_fit_their_window_and_complain_of_nothing(look: Looking, site: Path, size, scheme) -> None:
    seen = open_page(look, site, size, scheme)
    for page in PAGES:
        seen.page.goto(f"{site.as_uri()}/{page}")
        assert seen.page.evaluate(_HOW_MUCH_WIDER) <= 1, page


def test_search_finds_a_page_without_a_server(look: Looking, site: Path) -> None:
    seen = open_page(look, site, WIDE, "light")
    seen.page.goto(f"{site.as_uri()}/index.html")
    seen.page.locator("input.md-search__input").click()
    seen.page.keyboard.type("stall")
    found = seen.page.locator(".md-search-result__item a").first
    found.wait_for()
    assert "corrections.html" in " ".join(
        str(link.get_attribute("href")) for link in seen.page.locator(".md-search-result__item a").all()
    )
