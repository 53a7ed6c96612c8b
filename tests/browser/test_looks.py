"""Nothing overflows, nothing is hard to read, a keyboard reaches everything: on every page, light and dark."""

import pytest

from tests.browser.looking import NARROW, SCHEMES, WIDE, find_accessibility, find_overflow, walk_by_keyboard
from tests.browser.test_pages import PAGES


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_overflows_and_axe_finds_nothing_serious(look, explorer, path, scheme):
    opened = look(explorer.origin, size=WIDE, scheme=scheme, reduced_motion=True).open(path)
    opened.wait_until_still()
    wide = find_overflow(opened.page)
    accessible = find_accessibility(opened.page)
    opened.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    opened.open(path).wait_until_still()
    narrow = find_overflow(opened.page)
    assert {"1440 px": wide, "390 px": narrow, "axe": accessible} == {"1440 px": [], "390 px": [], "axe": []}


@pytest.mark.parametrize("path", PAGES)
def test_everything_is_within_reach_of_the_keyboard(look, explorer, path):
    opened = look(explorer.origin, reduced_motion=True).open(path)
    opened.wait_until_still()
    assert walk_by_keyboard(opened.page) == []


def test_the_first_stop_of_the_keyboard_skips_to_the_content(look, explorer):
    page = look(explorer.origin).open("/").page
    page.keyboard.press("Tab")
    page.keyboard.press("Tab") if page.evaluate("() => document.activeElement.tagName === 'H1'") else None
    skip = page.locator(".skip-link")
    assert skip.evaluate("(one) => one === document.activeElement")
    assert skip.bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
