"""Access points that are connected and do not hear of each other connect anew, and not for ever."""

from contextlib import ExitStack
from itertools import pairwise

import zenoh

from bdfl.transports.live.access_point import Unheard, open_access_point
from bdfl.transports.live.zenoh_config import Keys, Role, session_config
from tests.live.network_of_links import Links, free_ports, wait_until


def test_who_is_heard_of_is_waited_for_no_longer():
    unheard = Unheard(patience_s=3.0)
    assert not unheard.is_too_long(["a", "b"], {"a"}, 10.0)
    assert not unheard.is_too_long(["a", "b"], {"a"}, 12.9)
    assert not unheard.is_too_long(["a", "b"], {"a", "b"}, 13.1)
    assert not unheard.is_too_long(["a", "b"], {"a"}, 20.0)  # heard no more: it counts from now on
    assert unheard.is_too_long(["a", "b"], {"a"}, 23.0)


def test_who_comes_and_goes_is_waited_for_anew():
    unheard = Unheard(patience_s=3.0)
    assert not unheard.is_too_long(["a"], set(), 0.0)
    assert not unheard.is_too_long([], set(), 2.0)
    assert not unheard.is_too_long(["a"], set(), 4.0)
    assert not unheard.is_too_long(["a"], set(), 6.9)
    assert unheard.is_too_long(["a"], set(), 7.0)


def test_who_is_never_heard_of_is_given_more_and_more_time_until_all_went_well_for_long():
    unheard = Unheard(patience_s=3.0, max_patience_s=10.0)
    now_s, times = 0.0, []
    while len(times) < 5:
        if unheard.is_too_long(["old version"], set(), now_s):
            times.append(now_s)
        now_s += 0.5
    assert [later - earlier for earlier, later in pairwise(times)] == [6.5, 10.5, 10.5, 10.5]
    assert not unheard.is_too_long([], set(), now_s)  # who comes and goes does not shorten it
    assert not unheard.is_too_long(["b"], set(), now_s + 1.0)
    assert not unheard.is_too_long(["b"], set(), now_s + 10.0)
    assert unheard.is_too_long(["b"], set(), now_s + 11.0)
    now_s += 200.0  # all went well for long
    assert not unheard.is_too_long(["b"], set(), now_s)
    assert unheard.is_too_long(["b"], set(), now_s + 3.0)


def test_an_access_point_that_does_not_hear_of_another_it_is_connected_to_connects_anew():
    ports = [f"127.0.0.1:{port}" for port in free_ports(3)]
    config = session_config(
        Role.ACCESS_POINT, ports[:1], (), None, keys=Keys("*"), members=range(2), lease_s=3.0, max_payload=10**6
    )
    with (
        zenoh.open(config),  # a router that says nothing of itself
        open_access_point(ports[1:2], ports[:1], None) as deaf,
        open_access_point(ports[2:], (), None) as content,
    ):
        wait_until(lambda: deaf.num_reopened == 1, "it connects anew")
        wait_until(lambda: deaf.num_transports == 1, "and is there again")
        assert content.num_reopened == 0


def test_a_member_that_says_it_is_an_access_point_is_not_waited_for(tmp_path):
    with Links(2, tmp_path, num_access_points=1) as net, ExitStack() as stack:
        where = [f"127.0.0.1:{port}" for port in free_ports(2)]
        point = stack.enter_context(open_access_point(where[:1], (), net.ap_tls[0]))
        config = session_config(
            Role.ACCESS_POINT,
            where[1:],
            where[:1],
            net.tls[1],
            keys=Keys("*"),
            members=range(2),
            lease_s=3.0,
            max_payload=10**6,
        )
        stack.enter_context(zenoh.open(config))
        wait_until(lambda: point.num_transports == 1, "connected")
        assert [one.whatami for one in point._router.transports()] == [zenoh.WhatAmI.ROUTER]
        assert point._router.access_points() == []


def test_access_points_that_hear_of_each_other_stay_as_they_are():
    ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with (
        open_access_point(ports[:1], (), None) as first,
        open_access_point(ports[1:], ports[:1], None) as second,
    ):
        wait_until(lambda: first.num_transports == second.num_transports == 1, "connected")
        for one, other in ((first, second), (second, first)):
            number = str(other._router._session.info.zid())
            wait_until(lambda one=one, number=number: number in one._router.heard(), "it says that it is there")
        assert (first.num_reopened, second.num_reopened) == (0, 0)
    assert first.num_transports == 0
