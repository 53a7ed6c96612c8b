"""A tampered chain is shown as broken exactly where it breaks: by the server, by the browser, against the server."""

import msgspec
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.explorer_process import explore
from tests.browser.folders import change_parent, change_update, example_scenario, read_genesis, tamper

BROKEN = 5


def verdict(page: Page):
    return page.locator("#verification [data-verdict]")


def walk(page: Page):
    return page.locator("#verification [data-chain]")


@pytest.fixture(scope="module")
def tampered(chromium, run, folders):
    """By kind: an update changed under a checksum that fits, and one that does not; another parent, signed anew."""
    changes = {
        "update": (change_update, True),
        "row": (change_update, False),
        "parent": (change_parent(example_scenario(), read_genesis(run)), True),
    }
    paths = [
        tamper(run, folders / f"tampered-{kind}", BROKEN, change, with_checksum=with_checksum)
        for kind, (change, with_checksum) in changes.items()
    ]
    with explore(*paths) as served:
        yield served, list(changes)


def test_a_whole_chain_is_verified_by_the_browser(look, explorer):
    page = look(explorer.origin).open(f"/block/{BROKEN}").page
    expect(verdict(page)).to_have_attribute("data-verdict", "ok")
    expect(walk(page)).to_have_attribute("data-chain", "ok")
    expect(page.locator("#verification")).to_contain_text("Verified by this browser")


@pytest.mark.parametrize("number", [0, 1, 2], ids=["update", "row", "parent"])
def test_the_overview_says_at_which_block_the_chain_breaks(look, tampered, number):
    page = look(tampered[0].origin).open(f"/?run={number}").page
    expect(page.locator("#problems")).to_contain_text(f"The chain is broken at block {BROKEN}")


@pytest.mark.parametrize("number", [0, 2], ids=["update", "parent"])
def test_the_browser_finds_the_broken_block_and_no_other(look, tampered, number):
    opened = look(tampered[0].origin)
    page = opened.open(f"/block/{BROKEN}?run={number}").page
    expect(verdict(page)).to_have_attribute("data-verdict", "wrong")
    expect(walk(page)).to_have_attribute("data-chain", "wrong")
    expect(walk(page)).to_have_attribute("data-height", str(BROKEN))
    page = opened.open(f"/block/{BROKEN - 1}?run={number}").page
    expect(verdict(page)).to_have_attribute("data-verdict", "ok")


def test_a_block_that_cannot_be_read_is_shown_as_broken(look, tampered):
    page = look(tampered[0].origin).open(f"/block/{BROKEN}?run=1").page
    expect(page.locator("h1")).to_contain_text("broken")
    expect(page.locator("main")).to_contain_text("changed")


def flip(route: Route) -> None:
    """Passes on the server's answer with one bit of the block's bytes turned."""
    answer = route.fetch()
    block, votes = msgspec.msgpack.decode(answer.body())
    changed = bytearray(block)
    changed[len(changed) // 2] ^= 1
    route.fulfill(response=answer, body=msgspec.msgpack.encode([bytes(changed), votes]))


def test_bytes_changed_on_their_way_are_found_though_the_server_says_all_is_well(look, explorer):
    opened = look(explorer.origin)
    opened.page.route(f"**/raw/{BROKEN}?*", flip)
    opened.page.route(f"**/raw/{BROKEN}", flip)
    page = opened.open(f"/block/{BROKEN}").page
    assert page.locator("#problems").count() == 0
    expect(verdict(page)).to_have_attribute("data-verdict", "wrong")
    expect(walk(page)).to_have_attribute("data-height", str(BROKEN))


def test_a_server_that_describes_a_block_falsely_is_caught(look, explorer):
    def lie(route: Route) -> None:
        answer = route.fetch()
        document = answer.json()
        document["proposer"] = (document["proposer"] + 1) % 5
        route.fulfill(response=answer, json=document)

    opened = look(explorer.origin)
    opened.page.route(f"**/block/{BROKEN}.json*", lie)
    page = opened.open(f"/block/{BROKEN}").page
    expect(verdict(page)).to_have_attribute("data-verdict", "lie")
    expect(page.locator("#verification")).to_contain_text("proposer")
