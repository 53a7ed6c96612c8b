"""Schedulers as people write them."""

import pytest

from bdfl.errors import BadSchedulerParameter, UnknownScheduler
from bdfl.scenario import Scenario, ScenarioError, override_scenario
from bdfl.scheduling.registry import (
    InvalidChoice,
    choose_scheduler,
    parse_parameters,
    show_choice,
    split_choices,
)


def test_a_list_is_split_at_commas_and_settings_stay_with_their_scheduler():
    text = "drc, exact:tradeoff=50,target_gap=1e-6,random"
    assert split_choices(text) == ["drc", "exact:tradeoff=50,target_gap=1e-6", "random"]


@pytest.mark.parametrize(("text", "message"), [("", "none given"), ("drc,drc", "'drc' given twice")])
def test_a_list_without_meaning_is_refused(text, message):
    with pytest.raises(InvalidChoice, match=message):
        split_choices(text)


def test_tradeoff_is_v_and_everything_else_a_parameter():
    chosen = choose_scheduler(Scenario(), "exact:tradeoff=50,target_gap=1e-6").scheduler
    assert (chosen.name, chosen.tradeoff, chosen.parameters) == ("exact", 50.0, {"target_gap": 1e-6})


def test_the_scenarios_v_stays_and_its_parameters_go_with_its_scheduler():
    scenario = override_scenario(Scenario(), ["scheduler.tradeoff=7", "scheduler.parameters.max_iterations=3"])
    assert choose_scheduler(scenario, "exact").scheduler.tradeoff == 7.0
    assert choose_scheduler(scenario, "exact").scheduler.parameters == {}
    assert choose_scheduler(scenario, "drc").scheduler.parameters == {"max_iterations": 3}


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ("nobody", UnknownScheduler),
        ("drc:speed=3", BadSchedulerParameter),
        ("drc:tradeoff=-1", ScenarioError),
        ("drc:tradeoff", InvalidChoice),
    ],
)
def test_what_the_registry_or_the_scenario_does_not_know_is_refused(choice, error):
    with pytest.raises(error):
        choose_scheduler(Scenario(), choice)


def test_choices_are_shown_with_the_papers_symbol():
    assert show_choice("exact:tradeoff=50") == "exact V=50"
    assert show_choice("drc") == "drc"


def test_parameters_are_read_as_in_a_scenario():
    assert parse_parameters(["a=1", "b=x", "c=true"]) == {"a": 1, "b": "x", "c": True}
