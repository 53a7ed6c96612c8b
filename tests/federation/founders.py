"""A small federation for tests: four members of the minimal scenario, a model of five numbers, no data."""

from functools import cache

import numpy as np

from bdfl.federation.genesis_draft import Draft, add_access_point, add_card, begin_draft, finish_draft
from bdfl.federation.genesis_file import GenesisFile, load_live_scenario, sign_genesis
from bdfl.federation.member_card import SignedCard, emulated_profile_of, make_card
from bdfl.identity import Signer
from bdfl.learning.weights import Layout, encode_weights
from bdfl.scenario import Scenario
from bdfl.scenario.files import find_scenario
from bdfl.transports.live.certificates import make_ap_certificate

LAYOUT = Layout(("bias", "weight"), ((1,), (2, 2)))
INITIAL = encode_weights(np.arange(5, dtype=np.float32), LAYOUT)
NAMES = ("north", "östlich", "south", "west")
LABELS = ((5, 0, 1), (0, 4, 2), (3, 3, 3), (0, 0, 9))


def signer(number: int) -> Signer:
    return Signer(bytes([number + 1]) * 32)


@cache
def agreed(*changes: str) -> Scenario:
    return load_live_scenario(find_scenario("minimal"), changes)


def card(number: int, *changes: str, labels: tuple[int, ...] | None = None, name: str | None = None) -> SignedCard:
    scenario = agreed(*changes)
    share = emulated_profile_of(scenario, number, np.array(LABELS[number] if labels is None else labels))
    return make_card(signer(number), scenario, NAMES[number] if name is None else name, number, share)


def empty_draft() -> Draft:
    return begin_draft(agreed(), LAYOUT, INITIAL, 3)


@cache
def access_point(name: str = "ap-0") -> bytes:
    return make_ap_certificate(name, ["127.0.0.1"])[2]


@cache
def full_draft() -> Draft:
    draft = empty_draft()
    for number in (2, 0, 3, 1):  # cards come in any order
        draft = add_card(draft, agreed(), card(number))
    return add_access_point(draft, access_point())


@cache
def unsigned() -> GenesisFile:
    return finish_draft(full_draft(), agreed())


@cache
def signed() -> GenesisFile:
    file = unsigned()
    for number in range(4):
        file = sign_genesis(file, signer(number))
    return file
