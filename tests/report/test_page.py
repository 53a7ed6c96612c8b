"""report.html: one file, nothing from outside, whatever the names say, and nothing bad left unsaid."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import numpy as np
import pytest

from bdfl.experiment.statistics import rounds_owed
from bdfl.report.html import document, extract_styles, inline_svg, node, table_node
from bdfl.report.learning_figures import draw_exhibits
from bdfl.report.page import render_report, write_report
from bdfl.report.run_report import list_warnings, summarise_findings
from bdfl.scenario import override_scenario

STARVED = 'energy.budget_j={distribution="choice", values=[0.01, 0.4], weights=[0.5, 0.5], each_round=true}'
EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>&amp;'
EVIL_REASON = f"{EVIL}<!--"
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """A page taken apart: its tags with attributes, its text, and whether every tag was closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(self.words)


@pytest.fixture(scope="module")
def made(learned):
    return learned("rounds=20", "learning.momentum=0.9", 'description="a run"')


@pytest.fixture(scope="module")
def exhibits(made):
    """Its figures; where only the words of another run's report are looked at, they stand for that run's."""
    return draw_exhibits(made.run, made.learning, made.scenario)


@pytest.fixture(scope="module")
def html(made, exhibits):
    return render_report(made.run, made.learning, made.scenario, exhibits)


def test_a_report_is_one_file_the_same_every_time(made, html, tmp_path):
    path = write_report(made.run, made.learning, made.scenario, tmp_path / "new" / "report.html")
    assert path.read_bytes() == html.encode("utf-8")
    assert [item.name for item in path.parent.iterdir()] == ["report.html"]


def test_nothing_comes_from_outside_and_nothing_runs(html):
    page = Page(html)
    assert not {"script", "link", "iframe", "object", "embed", "base", "form", "a"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") or name in ("style", "src", "action") for name in attributes)
        link = attributes.get("href", "#")
        assert link.startswith(("#", "data:image/png;base64,"))
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert "url(" not in html[html.index("<style>") : html.index("</style>")]


def test_the_policy_allows_this_very_style_sheet_and_no_other(html):
    policy = next(meta["content"] for meta in Page(html).all("meta") if "http-equiv" in meta)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    sheet = html[html.index("<style>") + len("<style>") : html.index("</style>")]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()}'" in policy


def test_ids_are_unique_and_every_reference_leads_to_one(html):
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids)) > 10
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', html)
    assert set(used) == set(ids)


def test_every_figure_is_described_and_every_table_has_headers(html):
    page = Page(html)
    assert len(page.all("figure")) == len(page.all("figcaption")) == len(page.all("svg")) == 10
    for picture in page.all("svg"):
        assert picture["role"] == "img"
        assert len(picture["aria-label"]) > 40
        assert "viewbox" in picture
    assert len(page.all("table")) == len(page.all("caption")) == 6
    assert {header["scope"] for header in page.all("th")} == {"col", "row"}
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("title")) == 1
    assert page.all("html")[0]["lang"] == "en"


def test_figures_take_the_colours_of_light_and_dark_pages(html):
    sheet = html[html.index("<style>") : html.index("</style>")]
    assert "prefers-color-scheme:dark" in sheet
    assert "@media print" in sheet
    for name in re.findall(r"var\(--(\w+)\)", sheet):
        assert sheet.count(f"--{name}:#") == 2  # light and dark
    rules = sheet[sheet.index(".s0{") :]
    for light in ("#222222", "#6b6b6b", "#e4e4e4", "#0072b2", "#ffffff", "#b2182b"):
        assert light not in rules


def test_whatever_is_named_and_reasons_of_infeasible_rounds_stay_text(learned):
    names = [EVIL, "--><!--", "</style>", "\x00\ud800", *"456789"]
    made = learned("energy.budget_j=0.001", "rounds=2", names=names)
    scenario = msgspec.structs.replace(made.scenario, name=EVIL, description=EVIL)
    run = replace(made.run, scheduler=EVIL, scenario=EVIL, reason=(EVIL_REASON, EVIL_REASON))
    text = render_report(run, made.learning, scenario, draw_exhibits(run, made.learning, scenario))
    text.encode("utf-8")
    page = Page(text)
    assert not page.all("script")
    assert not page.all("img")
    assert EVIL in page.words
    assert EVIL_REASON in page.text
    assert text.count("<style>") == 1


def test_what_went_wrong_stands_at_the_top(learned, exhibits):
    made = learned("rounds=24", STARVED, diverged=[(round, 0) for round in range(1, 25)])
    text = render_report(made.run, made.learning, made.scenario, exhibits)
    top = Page(text[: text.index("<h2>")] + "</main></body></html>").text
    assert f"{made.run.num_infeasible} of 24 rounds were infeasible" in top
    assert "diverged and w" in top
    assert "took part less often" in top


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        (["rounds=3"], {"evaluate_every": 0}, "No evaluation"),
        (["energy.budget_j=0.001", "rounds=3"], {}, "3 of 3 rounds were infeasible"),
        (["rounds=9"], {"diverged": [(1, client) for client in range(8)]}, "diverged"),
    ],
)
def test_every_kind_of_trouble_is_said(learned, changes, options, expected):
    made = learned(*changes, **options)
    assert any(expected in warning for warning in list_warnings(made.run, made.learning, made.scenario))


def test_a_model_that_did_not_learn_and_clients_without_data_are_said(made):
    dull = replace(made.learning, accuracy=np.full(20, 0.1), samples=np.array([0.0, *made.learning.samples[1:]]))
    words = " ".join(list_warnings(made.run, dull, made.scenario))
    assert "did not learn" in words
    assert "1 client without data: 0." in words


def test_an_unfinished_run_says_how_far_it_is(made):
    longer = override_scenario(made.scenario, ["rounds=50"])
    assert "20 of 50 rounds" in summarise_findings(made.run, made.learning, longer)
    assert any("not over" in warning for warning in list_warnings(made.run, made.learning, longer))


def test_the_summary_says_accuracy_time_energy_and_fairness(made):
    line = summarise_findings(made.run, made.learning, made.scenario)
    assert line.startswith(f"{100 * made.learning.final_accuracy:.1f} % test accuracy after 20 rounds, ")
    assert f"{made.run.total_delay_s:.1f} simulated seconds; no energy budget overdrawn; " in line
    generous = replace(made.run, participation_rate=np.zeros(8))
    assert np.all(rounds_owed(generous) <= 0)
    assert summarise_findings(generous, made.learning, made.scenario).endswith("every client at its rate or above.")


def test_an_overdrawn_budget_is_said(made):
    overdrawn = replace(made.run, mining_j=made.run.mining_j + 1.0)
    assert "8 energy budgets overdrawn" in summarise_findings(overdrawn, made.learning, made.scenario)
    assert any(
        "more than their energy budget" in text for text in list_warnings(overdrawn, made.learning, made.scenario)
    )


def test_lemma_1_names_what_the_run_does_not_meet_or_why_it_cannot_say(html, learned, exhibits):
    assert "Momentum 0.9" in html
    assert "not a proof" in html
    blind = learned("rounds=2", gradient_every=0)
    page = Page(render_report(blind.run, blind.learning, blind.scenario, exhibits))
    assert "learning.gradient_every = 1" in page.text


def test_tables_say_what_the_records_say(made, html):
    page = Page(html)
    best = made.learning.best_round
    assert f"best {100 * made.learning.accuracy[best - 1]:.1f} % in round {best}" in page.text
    assert made.run.scenario_digest in page.words
    assert "learning.momentum" in page.words
    assert "2,410" in page.words


def test_a_report_of_many_rounds_stays_small(learned):
    made = learned("rounds=300", "clients.count=30")
    drawn = draw_exhibits(made.run, made.learning, made.scenario)
    assert len(render_report(made.run, made.learning, made.scenario, drawn).encode()) < 1_500_000


def test_of_very_many_clients_the_table_shows_those_owed_most(learned, exhibits):
    made = learned("rounds=2", "clients.count=150")
    page = Page(render_report(made.run, made.learning, made.scenario, exhibits))
    assert any("100 clients that are owed most, of 150" in word for word in page.words)


def test_a_node_keeps_the_order_of_texts_and_elements():
    assert (
        document(node("p.lead", "a", node("b", "<"), "c", "d"))
        == '<!doctype html>\n<p class="lead">a<b>&lt;</b>cd</p>\n'
    )


def test_columns_of_words_are_told_from_numbers():
    table = table_node("t", ("a", "b", "c"), [("x", "1", "y")], words=(0, 2))
    assert [cell.get("class") for cell in table.iter("td")] == ["number", "words"]


def test_an_inlined_figure_has_names_of_its_own_and_keeps_its_styles_as_classes():
    svg = (
        b'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">'
        b'<metadata>x</metadata><defs><style type="text/css">*{a:b}</style><path id="m" d="M 1.23456 2"/></defs>'
        b'<g id="unused"><use xlink:href="#m" style="stroke: #222222; fill: none"/></g>'
        b'<g clip-path="url(#c)"/><clipPath id="c"/></svg>'
    )
    element = inline_svg(svg, "f7", "what it shows")
    rules = extract_styles(element, {"#222222": "var(--ink)"})
    assert rules == ".s0{stroke: var(--ink); fill: none}\n"
    text = document(element)
    assert "metadata" not in text
    assert "style" not in text
    assert "unused" not in text
    assert 'd="M 1.23 2"' in text
    assert 'href="#f7-1"' in text
    assert 'id="f7-1"' in text
    assert "url(#f7-0)" in text
