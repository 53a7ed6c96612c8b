"""Members that ran ahead wait for the others: whatever the lead, a network that is well again goes on at once."""

import pytest

from campaigns.faults.trial import try_seed
from campaigns.selfish.judging import LEADS_S, MAX_RECOVERY_S
from campaigns.selfish.playing import recovery_s


@pytest.mark.parametrize("lead_s", LEADS_S)
def test_recovery_takes_at_most_three_attempts_whatever_the_lead(lead_s):
    assert recovery_s(lead_s) <= MAX_RECOVERY_S


def test_the_network_in_which_two_ran_ahead_of_five_holds():
    verdict = try_seed(1099511627787, with_story=True)
    assert verdict.is_good, verdict.story
