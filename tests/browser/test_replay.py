"""The replay: play and pause, speed, slider, steps and keys, one position for all pages, kept in the address."""

import re

from playwright.sync_api import Page, expect

from tests.browser.folders import NUM_ROUNDS

LAST = f"Block {NUM_ROUNDS} of {NUM_ROUNDS}"


def where(page: Page):
    return page.locator(".replay-where b")


def slide_to(page: Page, height: int) -> None:
    page.locator(".replay-slider").fill(str(height))


def test_the_slider_moves_every_page_to_what_was_known_then(look, explorer):
    page = look(explorer.origin).open("/").page
    expect(where(page)).to_have_text(LAST)
    slide_to(page, 5)
    expect(where(page)).to_have_text(f"Block 5 of {NUM_ROUNDS}")
    page.wait_for_function("() => new URLSearchParams(location.search).get('at') === '5'")
    expect(page.locator("a.block-tile[data-height='5']")).to_be_attached()
    expect(page.locator("a.block-tile[data-height='6']")).not_to_be_attached()
    page.get_by_role("link", name="Network").click()
    page.wait_for_function("() => document.title.startsWith('Network')")
    expect(where(page)).to_have_text(f"Block 5 of {NUM_ROUNDS}")


def test_an_address_leads_to_its_position(look, explorer):
    page = look(explorer.origin).open("/network?at=3").page
    expect(where(page)).to_have_text(f"Block 3 of {NUM_ROUNDS}")


def test_steps_keys_and_the_end(look, explorer):
    page = look(explorer.origin).open("/").page
    page.get_by_label("One block back").click()
    expect(where(page)).to_have_text(f"Block {NUM_ROUNDS - 1} of {NUM_ROUNDS}")
    page.get_by_label("One block forward").click()
    expect(where(page)).to_have_text(LAST)
    expect(page.get_by_label("One block forward")).to_be_disabled()
    page.locator("h1").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(where(page)).to_have_text(f"Block {NUM_ROUNDS - 2} of {NUM_ROUNDS}")
    page.get_by_role("button", name="End").click()
    expect(where(page)).to_have_text(LAST)


def test_it_plays_from_the_beginning_at_any_speed_and_stops_at_the_end(look, explorer):
    page = look(explorer.origin).open("/").page
    page.get_by_label("Replay speed").select_option("10")
    page.locator("h1").focus()
    page.keyboard.press("Space")
    expect(page.get_by_label("Pause (space)")).to_be_visible()
    expect(where(page)).to_have_text(re.compile(rf"Block [1-9] of {NUM_ROUNDS}"))
    expect(where(page)).to_have_text(LAST)
    expect(page.get_by_label("Play (space)")).to_be_visible()


def test_a_pause_stays_where_it_is(look, explorer):
    page = look(explorer.origin).open("/?at=2").page
    page.get_by_label("Replay speed").select_option("2")
    page.get_by_label("Play (space)").click()
    expect(where(page)).to_have_text(re.compile(rf"Block [3-9] of {NUM_ROUNDS}"))
    page.get_by_label("Pause (space)").click()
    paused = where(page).inner_text()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(where(page)).to_have_text(paused)
    height = re.search(r"\d+", paused)[0]
    page.wait_for_function("(height) => new URLSearchParams(location.search).get('at') === height", arg=height)


def test_replay_shows_no_accuracy_that_was_not_known_then(look, explorer):
    page = look(explorer.origin).open("/?at=3").page
    final = "85.0"  # of round 12, in percent
    assert final not in page.locator("main").inner_text()
    page.get_by_role("button", name="End").click()
    page.locator("main").get_by_text(final).first.wait_for()
