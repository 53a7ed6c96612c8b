"""Names that are markup are shown as text: no dialog, no request, no element comes of them."""

import pytest
from playwright.sync_api import expect

from tests.browser.explorer_process import explore
from tests.browser.folders import HOSTILE, write_hostile_run

QUERIES = ["?at=<img src=x onerror=alert(1)>", "?x=<script>alert(1)</script>", "#<svg onload=alert(1)>"]
PATHS = ["/", "/network", "/blocks", "/block/2", "/client/0", "/model/2", "/what-if/2", "/compare"]


@pytest.fixture(scope="module")
def hostile(chromium, folders, run):
    with explore(write_hostile_run(folders), run) as served:
        yield served


@pytest.mark.parametrize("path", PATHS)
def test_hostile_names_do_nothing(look, hostile, path):
    page = look(hostile.origin).open(path).page
    assert page.locator("img, script:not([src]), [onerror]").count() == 0
    assert "<img" in page.locator("body").inner_text() + page.title()  # else nothing was tried


@pytest.mark.parametrize(
    "query", ["?at=<img src=x onerror=alert(1)>", "?run=0&x=%3Cscript%3E", "#<svg onload=alert(1)>"]
)
def test_hostile_addresses_do_nothing(look, hostile, query):
    page = look(hostile.origin).open("/" + query).page
    assert page.locator("img, svg[onload], [onerror]").count() == 0


def test_the_name_is_shown_as_it_is(look, hostile):
    page = look(hostile.origin).open("/").page
    expect(page.locator("body")).to_contain_text(HOSTILE[:20])
