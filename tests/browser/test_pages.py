"""Every page shows what it is about, says it as JSON too, and can be gone to and back from."""

import re

import pytest
from playwright.sync_api import expect

from tests.browser.folders import CONVICTED, CONVICTION, NUM_CLIENTS, NUM_ROUNDS

# By address: the heading, and words that the page must show.
PAGES = {
    "/": ("", [f"{NUM_ROUNDS}"]),
    "/network": ("Network", ["client 0"]),
    "/blocks": ("Blocks", [f"{NUM_ROUNDS}"]),
    f"/block/{CONVICTION}": (f"Block {CONVICTION}", ["In plain words", "Verified by this browser", "Epsilon so far"]),
    f"/client/{CONVICTED}": (f"[Cc]lient {CONVICTED}", ["Offences", "Epsilon spent"]),
    "/model/8": ("[Mm]odel", ["block 8"]),
    "/what-if/8": ("What if", ["drc", "exact"]),
    "/what-if": ("What if", ["drc", "exact"]),
    "/compare": ("Compar", ["digits", "digits-exact"]),
}


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_filled_without_a_complaint(look, explorer, path):
    heading, words = PAGES[path]
    page = look(explorer.origin).open(path).page
    assert page.title().endswith("bdfl explorer")
    assert re.search(heading, page.locator("h1").inner_text())
    for word in words:
        expect(page.locator("main")).to_contain_text(word)
    assert "could not be drawn" not in page.locator("main").inner_text()


@pytest.mark.parametrize("path", [path for path in PAGES if path != "/"])
def test_every_page_has_a_twin_in_json(look, explorer, path):
    opened = look(explorer.origin)
    answer = opened.page.request.get(f"{explorer.origin}{path}.json")
    assert answer.ok
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()


def test_the_other_run_is_one_choice_away(look, explorer):
    page = look(explorer.origin).open("/").page
    page.get_by_label("Run", exact=True).select_option("1")
    page.wait_for_function("() => location.search.includes('run=1') && document.title.includes('digits-exact')")


def test_going_on_and_back_moves_the_focus_and_the_title(look, explorer):
    page = look(explorer.origin).open("/blocks").page
    first = page.title()
    page.locator("main a[href*='/block/']").first.click()
    page.wait_for_function("() => document.activeElement.tagName === 'H1' && document.title.startsWith('Block ')")
    page.go_back()
    page.wait_for_function("(title) => document.title === title", arg=first)
    page.go_forward()
    page.wait_for_function("() => document.title.startsWith('Block ')")


@pytest.mark.parametrize("path", [f"/block/{NUM_ROUNDS + 1}", f"/client/{NUM_CLIENTS}", "/model/999", "/?run=7"])
def test_what_is_not_there_is_said_and_leads_back(look, explorer, path):
    opened = look(explorer.origin)
    opened.allow("404")
    answer = opened.page.goto(explorer.origin + path)
    assert answer.status == 404
    opened.wait_until_filled()
    page = opened.page
    assert page.locator("h1").inner_text() == "Not here"
    page.get_by_role("link", name="Back to the overview").click()
    page.wait_for_function("() => location.pathname === '/'")


def test_colours_follow_the_system_and_the_switch(look, explorer):
    opened = look(explorer.origin, scheme="dark").open("/")
    page = opened.page
    background = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    switch = page.get_by_role("button", name="Colours")
    switch.click()
    light = page.evaluate(background)
    switch.click()
    assert page.evaluate(background) == dark
    assert dark != light
