"""Maps whose copies share what they hold behave as if they did not."""

import random

import pytest

from bdfl.protocol.votes import AppendMap


@pytest.mark.parametrize("may_share", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_copies_are_as_plain_dictionaries_are(seed, may_share):
    chance = random.Random(seed)
    pairs = [(AppendMap({}, may_share=may_share), {})]
    for _ in range(200):
        grown, plain = chance.choice(pairs)
        match chance.randrange(5):
            case 0:
                pairs.append((AppendMap.copy_of(grown, may_share=may_share), dict(plain)))
            case 1 if plain:
                key = chance.choice(list(plain))
                del grown[key], plain[key]
            case _:
                key, value = chance.randrange(12), chance.random()
                grown[key] = plain[key] = value
        pairs = pairs[-6:]
        for one, other in pairs:
            assert list(one.items()) == list(other.items())
            assert (len(one), list(one), list(one.values())) == (len(other), list(other), list(other.values()))
            assert one.keys() == other.keys()
            assert all((key in one) == (key in other) and one.get(key) == other.get(key) for key in range(12))


def test_adding_to_the_newest_copies_nothing_and_leaves_the_others_as_they_were():
    first = AppendMap({1: "a"}, may_share=True)
    second = AppendMap.copy_of(first, may_share=True)
    second[2] = "b"
    assert second._entries is first._entries
    assert dict(first) == {1: "a"}
    assert dict(second) == {1: "a", 2: "b"}


def test_threads_share_nothing():
    first = AppendMap({1: "a"}, may_share=False)
    assert AppendMap.copy_of(first, may_share=False)._entries is not first._entries
    assert AppendMap.copy_of(first, may_share=True)._entries is not first._entries
