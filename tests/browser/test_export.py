"""The export opens from a disk: every page, the replay and the verification, with no server and no request."""

import re

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from bdfl.cli import app
from tests.browser.folders import NUM_ROUNDS
from tests.browser.test_replay import LAST, where

PATHS = ["/", "/network", "/blocks", "/block/6", "/client/4", "/model/8", "/what-if/8", "/compare"]


@pytest.fixture(scope="module")
def site(chromium, run, folders) -> str:
    """The address of a page on the disk."""
    folder = folders / "site"
    done = CliRunner().invoke(app, ["explore", str(run), "--export", str(folder)])
    assert done.exit_code == 0, done.stderr
    return (folder / "index.html").as_uri()


@pytest.mark.parametrize("path", PATHS)
def test_every_page_opens_from_the_disk(look, site, path):
    opened = look("file://")
    page = opened.page
    page.goto(f"{site}#{path}")
    opened.wait_until_filled()
    text = page.locator("main").inner_text()
    assert "could not be drawn" not in text
    assert page.locator("h1").inner_text() != "Not here"
    requested = page.evaluate("() => performance.getEntriesByType('resource').map((one) => one.name)")
    assert [one for one in requested if not one.startswith("data:")] == []


def test_the_replay_plays_from_the_disk(look, site):
    opened = look("file://")
    page = opened.page
    page.goto(site)
    opened.wait_until_filled()
    expect(where(page)).to_have_text(LAST)
    page.get_by_label("Replay speed").select_option("25")
    page.get_by_label("Play (space)").click()
    expect(where(page)).to_have_text(re.compile(rf"Block \d of {NUM_ROUNDS}"))
    expect(where(page)).to_have_text(LAST)


def test_links_lead_on_within_the_page(look, site):
    opened = look("file://")
    page = opened.page
    page.goto(site)
    opened.wait_until_filled()
    page.locator("a.block-tile[data-height='12']").click()
    page.wait_for_function("() => location.hash.startsWith('#/block/12')")
    expect(page.locator("h1")).to_contain_text("Block 12")
    page.go_back()
    expect(page.locator("h1")).not_to_contain_text("Block 12")


def test_the_browser_verifies_from_the_disk_or_says_that_it_cannot(look, site):
    opened = look("file://")
    page = opened.page
    page.goto(f"{site}#/block/5")
    opened.wait_until_filled()
    verification = page.locator("#verification")
    expect(verification).to_contain_text(
        re.compile("Verified by this browser.*genesis to block 12|Not verified here", re.S)
    )


def test_without_webcrypto_nothing_is_claimed(look, site):
    opened = look("file://")
    page = opened.page
    page.add_init_script("Object.defineProperty(window, 'crypto', {value: {}})")
    page.goto(f"{site}#/block/5")
    opened.wait_until_filled()
    expect(page.locator("#verification")).to_contain_text("Not verified here")
    assert page.locator("#verification [data-verdict='ok'], #verification [data-chain='ok']").count() == 0
