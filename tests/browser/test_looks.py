"""Nothing overflows, nothing is hard to read, a keyboard reaches everything: on every page, light and dark."""

import pytest

from tests.browser.looking import NARROW, SCHEMES, WIDE, find_accessibility, find_overflow, walk_by_keyboard
from tests.browser.test_pages import PAGES


@pytest.mark.parametrize("path", PAGES)
def test_nothing_overflows_axe_finds_nothing_serious_and_a_keyboard_reaches_everything(look, explorer, path):
    opened = look(explorer.origin, size=WIDE, reduced_motion=True).open(path)
    found = {}
    for scheme in SCHEMES:
        opened.page.emulate_media(color_scheme=scheme)
        opened.wait_until_still()
        found |= {f"1440 px, {scheme}": find_overflow(opened.page), f"axe, {scheme}": find_accessibility(opened.page)}
    found["keyboard"] = walk_by_keyboard(opened.page)
    opened.page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    opened.open(path).wait_until_still()
    for scheme in SCHEMES:
        opened.page.emulate_media(color_scheme=scheme)
        found[f"390 px, {scheme}"] = find_overflow(opened.page)
    assert {where: what for where, what in found.items() if what} == {}


def test_the_first_stop_of_the_keyboard_skips_to_the_content(look, explorer):
    page = look(explorer.origin).open("/").page
    page.keyboard.press("Tab")
    page.keyboard.press("Tab") if page.evaluate("() => document.activeElement.tagName === 'H1'") else None
    skip = page.locator(".skip-link")
    assert skip.evaluate("(one) => one === document.activeElement")
    assert skip.bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
