"""Members that ran ahead wait for the others: whatever the lead, a network that is well again goes on at once."""

import pytest

from bdfl.protocol import consensus
from campaigns.faults.trial import try_seed
from campaigns.selfish.judging import LEADS_S, MAX_RECOVERY_S
from campaigns.selfish.playing import recovery_s


@pytest.mark.parametrize("lead_s", LEADS_S)
def test_recovery_takes_at_most_three_attempts_whatever_the_lead(lead_s):
    assert recovery_s(lead_s) <= MAX_RECOVERY_S


def test_without_a_quorum_to_wait_for_a_long_lead_stalls_the_network(monkeypatch):
    """Else the measurement would notice nothing: here only a member that is ahead alone waits."""

    def is_alone(draft):
        has_voted = any(attempt == draft.attempt for attempt, _ in draft.own_votes)
        return has_voted and len({voter for when, _, voter, _ in draft.votes if when >= draft.attempt}) < 2

    monkeypatch.setattr(consensus, "_is_without_quorum", is_alone)
    assert recovery_s(32) > MAX_RECOVERY_S


def test_the_network_in_which_two_ran_ahead_of_five_holds():
    verdict = try_seed(1099511627787, with_story=True)
    assert verdict.is_good, verdict.story
