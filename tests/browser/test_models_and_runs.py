"""Lineage of models, a client's pages and runs side by side."""

from playwright.sync_api import expect

from tests.browser.folders import CONVICTED, CONVICTION


def test_a_model_is_compared_with_any_other(look, explorer):
    page = look(explorer.origin).open("/model/8").page
    page.get_by_label("with the model after block").fill("3")
    page.get_by_label("with the model after block").press("Enter")
    page.wait_for_function("() => new URLSearchParams(location.search).get('other') === '3'")
    expect(page.get_by_role("region", name="Compared with another model")).to_contain_text("weight")


def test_a_model_is_seen_without_a_client(look, explorer):
    page = look(explorer.origin).open("/model/8").page
    card = page.get_by_role("region", name="Without a client")
    card.get_by_role("combobox").select_option("0")
    page.wait_for_function("() => new URLSearchParams(location.search).get('without') === '0'")
    expect(card).to_contain_text("Changed in")


def test_offences_come_with_their_evidence(look, explorer):
    page = look(explorer.origin).open(f"/client/{CONVICTED}").page
    offences = page.get_by_role("region", name="Offences")
    expect(offences).to_contain_text(f"block {CONVICTION}")
    offences.get_by_text("The evidence itself").click()
    expect(offences).to_contain_text("first")


def test_runs_are_compared_in_pairs_of_rounds(look, explorer):
    page = look(explorer.origin).open("/compare").page
    expect(page.locator("h1")).to_have_text("Compare 2 runs")
    expect(page.locator("main")).to_contain_text("12 rounds compared")
    page.get_by_role("radio", name="seconds").first.click()
