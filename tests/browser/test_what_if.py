"""What-if: every control changes the round's problem, and what schedulers would choose changes with it."""

import pytest
from playwright.sync_api import Page, expect

CONTROLS = ["tradeoff", "budget_scale", "energy_budget_j", "bandwidth_hz", "work_scale", "gain_db"]
# All that the table says but its last column, which is how long a scheduler took.
COSTS = """() => [...document.querySelectorAll(".what-if-results table tr")]
  .map((row) => [...row.cells].slice(0, -1).map((cell) => cell.innerText).join()).join()"""


def cost_table(page: Page):
    return page.get_by_role("region", name="Cost of every scheduler's choice")


def exact_delay(page: Page) -> str:
    return cost_table(page).get_by_role("row").filter(has_text="exact").first.inner_text()


def wait_for_answer(page: Page, name: str) -> None:
    page.wait_for_function("(name) => new URLSearchParams(location.search).has(name)", arg=name)
    page.wait_for_function("() => !document.querySelector('.what-if-results[aria-busy]')")


@pytest.fixture
def page(look, explorer) -> Page:
    page = look(explorer.origin).open("/what-if/8").page
    cost_table(page).wait_for()
    return page


def test_the_recorded_decision_stands_beside_every_scheduler(page):
    text = cost_table(page).inner_text()
    for word in ("on the chain", "drc", "exact", "channel-best", "random", "round-robin"):
        assert word in text
    expect(page.locator(".certificate .say")).not_to_be_empty()


def test_every_control_changes_the_problem_at_once_and_is_undone_at_once(page):
    recorded = page.evaluate(COSTS)
    for name in CONTROLS:
        dial = page.locator(f"[data-setting='{name}']")
        dial.focus()
        dial.press("Home")
        wait_for_answer(page, name)
        page.wait_for_function(f"(recorded) => ({COSTS})() !== recorded", arg=recorded)
        page.locator(".dial", has=dial).get_by_label("as recorded").click()
        page.wait_for_function("(name) => !new URLSearchParams(location.search).has(name)", arg=name)
        page.wait_for_function(f"(recorded) => ({COSTS})() === recorded", arg=recorded)


def test_less_bandwidth_takes_longer(page):
    def delay_of_exact() -> float:
        answer = page.request.get(page.url.replace("/what-if/8", "/what-if/8.json"))
        return next(one["delay_s"] for one in answer.json()["choices"] if one["scheduler"].startswith("exact"))

    before = delay_of_exact()
    field = page.locator("[data-number='bandwidth_hz']")
    field.fill(str(0.8 * float(field.input_value())))
    wait_for_answer(page, "bandwidth_hz")
    assert delay_of_exact() > before


def test_a_value_out_of_bounds_is_refused_in_the_page_and_by_the_server(page, explorer):
    field = page.locator("[data-number='tradeoff']")
    field.fill("-1")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert "tradeoff" not in page.url
    refused = page.request.get(f"{explorer.origin}/what-if/8.json?tradeoff=-1")
    assert refused.status == 400
    assert refused.json()["error"]


def test_one_clients_channel_can_be_changed(page):
    page.get_by_label("Whose channel").select_option("1")
    dial = page.locator("[data-setting='gain_db']")
    dial.focus()
    dial.press("Home")
    wait_for_answer(page, "gain_db")
    assert "client=1" in page.url


def test_an_address_with_settings_shows_them_again(look, explorer):
    page = look(explorer.origin).open("/what-if/8?tradeoff=7").page
    expect(page.locator("[data-number='tradeoff']")).to_have_value("7")
