"""Connections in a member's name that are not its own are found, cut, and kept out for a moment; all others come in."""

import errno
import ipaddress
import socket
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from bdfl.transports.live import door as door_module
from bdfl.transports.live.connections import GRACE_S, SILENT_S, Connection, Connections, Heard
from bdfl.transports.live.door import _MANY_FILES, BARRED_S, MAX_WAITING, Door, set_filter
from bdfl.transports.live.doorkeeper import Doorkeeper
from tests.live.network_of_links import wait_until

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="sockets are filtered on Linux only")
V = "member-1"
OWN, OTHER, THIRD = Connection("own", V, "10.0.0.1", 1), Connection("x", V, "10.0.0.2", 2), Connection("y", V, "::1", 3)


def connected(*some, at_s=0.0):
    connections = Connections()
    connections.note(some, at_s)
    return connections


def find(connections, now_s, heard=None, pressed=()):
    """Who is cut, of which those are proven to be others."""
    found = connections.find_impostors({V: heard}.get, pressed.__contains__, now_s)
    return [one.connection for one in found], [one.connection for one in found if one.is_proven]


def test_whoever_is_connected_in_the_name_of_a_member_that_is_there_itself_is_an_impostor():
    connections = connected(OWN, OTHER, THIRD)
    assert find(connections, 1.0, Heard("own", 0.5)) == ([OTHER, THIRD], [OTHER, THIRD])
    connections.note([OWN, THIRD], 0.9)
    assert find(connections, 1.0, Heard("own", 0.5)) == ([THIRD], [THIRD])
    connections.remove(THIRD)
    assert find(connections, 100.0, Heard("own", 0.5), [V]) == ([], [])
    connections.clear()
    assert find(connections, 100.0, Heard("own", 0.5), [V]) == ([], [])


def test_whoever_takes_the_name_of_a_members_session_is_not_the_member_until_that_says_so():
    connections = connected(OWN, OTHER, at_s=10.0)  # the member was last heard before either of them came
    assert find(connections, 11.0, Heard("own", 9.0)) == ([], [])
    assert find(connections, 10.0 + SILENT_S, Heard("own", 9.0)) == ([OWN, OTHER], [])
    assert find(connections, 11.0, Heard("x", 10.5)) == ([OWN], [OWN])


def test_who_has_just_connected_has_time_to_say_who_it_is_and_less_where_too_much_comes():
    connections = connected(OTHER)
    connections.note([OTHER], 0.5)  # again: it was there before
    for heard in (None, Heard("own", 100.0)):
        assert find(connections, 0.9 * SILENT_S, heard) == ([], [])
        assert find(connections, SILENT_S, heard) == ([OTHER], [])
        assert find(connections, 0.9 * GRACE_S, heard, [V]) == ([], [])
        assert find(connections, GRACE_S, heard, [V]) == ([OTHER], [])


def test_a_member_that_starts_again_has_time_to_say_so_though_its_former_connection_is_still_there():
    connections = connected(OWN)
    connections.note([OWN, OTHER], 5.0)
    former, new = Heard("own", 0.5), Heard("x", 5.5)
    assert find(connections, 5.0 + 0.9 * GRACE_S, former) == ([], [])
    assert find(connections, 5.0 + GRACE_S, former) == ([OTHER], [OTHER])  # it said nothing
    assert find(connections, 5.0, former, [V]) == ([OTHER], [OTHER])  # and here too much comes
    assert find(connections, 5.0 + GRACE_S, new) == ([OWN], [])  # what is left of it: its host is not kept out


def test_newcomers_are_such_for_a_while():
    connections = connected(OWN, at_s=5.0)
    assert connections.newcomers(5.0) == connections.newcomers(9.9) == {V}
    assert connections.newcomers(10.0) == set()


class OneMember:
    """As much of a gate as a doorkeeper asks: member 1 was heard over its own session just now."""

    members = frozenset([1])

    def heard_of(self, number):
        return Heard(OWN.session, time.monotonic())


def test_who_is_connected_in_the_nodes_own_name_is_cut_off_at_once(monkeypatch):
    cut = []
    own = Connection("z", "member-0", "10.0.0.9", 9)
    keeper = Doorkeeper(
        (),
        0,
        OneMember(),
        connected=lambda: {OWN, own},
        pressed=tuple,
        muted=tuple,
        greet=int,
        count=lambda what, amount: None,
    )
    monkeypatch.setattr(keeper._door, "turn_away", lambda *where, bars: cut.append((*where[:2], bars)) or True)
    keeper._look(1.0)
    assert cut == [("10.0.0.9", 9, True)]


def test_who_is_cut_off_and_comes_back_between_two_looks_is_cut_off_again(monkeypatch):
    there, cut, greeted = {OWN, OTHER}, [], []
    again = replace(OTHER, port=4)

    def turn_away(host, port, now_s, *, bars):
        cut.append((host, port, bars))
        there.difference_update({OTHER, again})
        if len(cut) == 1:
            there.add(again)
        return True

    keeper = Doorkeeper(
        (),
        0,
        OneMember(),
        connected=there.copy,
        pressed=tuple,
        muted=tuple,
        greet=greeted.append,
        count=lambda what, amount: None,
    )
    monkeypatch.setattr(keeper._door, "turn_away", turn_away)
    keeper.start()
    wait_until(lambda: len(cut) == 2, "cut off twice")
    wait_until(lambda: len(greeted) > 1, "greeted")
    keeper.close(5.0)
    assert cut == [(OTHER.host, OTHER.port, True), (again.host, again.port, True)]
    assert set(greeted) == {1}


def listen(host):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, 0), family=family)
    listening.settimeout(5.0)
    return listening


def knock(listening, source=None, timeout_s=0.3):
    """A connection to a listening socket, from an address of this machine; raises TimeoutError where none comes."""
    where = listening.getsockname()[:2]
    return socket.create_connection(where, timeout=timeout_s, source_address=None if source is None else (source, 0))


@needs_linux
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_is_turned_away_is_cut_off_and_comes_in_again_after_a_moment(host):
    try:
        listening = listen(host)
    except OSError:
        assert host == "::1"  # a machine without IPv6
        return
    with closing(listening):
        door = Door([listening.getsockname()[1]])
        with closing(knock(listening)) as outside, closing(listening.accept()[0]):
            port = outside.getsockname()[1]
            assert door.turn_away(host, port, 10.0)
            assert outside.recv(1) == b""  # it is over
            assert not door.turn_away(host, port + 1, 10.0)
            with pytest.raises(TimeoutError):
                knock(listening)
            door.let_in(10.0 + 0.9 * BARRED_S)
            with pytest.raises(TimeoutError):
                knock(listening)
            door.let_in(10.0 + BARRED_S)
            knock(listening).close()


@needs_linux
def test_who_comes_back_again_and_again_is_kept_out_for_longer_and_longer_until_it_is_forgiven():
    with closing(listen("127.0.0.1")) as listening:
        door = Door([listening.getsockname()[1]])
        now_s, waits_s = 0.0, []
        for pause_s in (0.0, 0.0, 0.0, 0.0, 0.0, 100.0):
            now_s += pause_s
            door.let_in(now_s)
            with closing(knock(listening)) as outside, closing(listening.accept()[0]):
                assert door.turn_away("127.0.0.1", outside.getsockname()[1], now_s)
            began_s = now_s
            while door._barred:
                now_s += 0.5
                door.let_in(now_s)
            waits_s.append(now_s - began_s)
        assert waits_s == [2.0, 4.0, 8.0, 16.0, 16.0, 2.0]
        with closing(knock(listening)) as outside, closing(listening.accept()[0]):
            assert door.turn_away("127.0.0.1", outside.getsockname()[1], now_s)
            door.let_in(now_s + 1000.0)  # nobody looked for long
            knock(listening).close()


@needs_linux
def test_who_is_not_proven_to_be_another_is_cut_off_and_may_come_again_at_once():
    with closing(listen("127.0.0.1")) as listening:
        door = Door([listening.getsockname()[1]])
        with closing(knock(listening)) as outside, closing(listening.accept()[0]):
            assert door.turn_away("127.0.0.1", outside.getsockname()[1], 0.0, bars=False)
            assert outside.recv(1) == b""
        knock(listening).close()


@needs_linux
def test_others_come_in_while_somebody_is_kept_out():
    with closing(listen("127.0.0.1")) as listening:
        far = [ipaddress.ip_address(f"2001:db8::{number}") for number in range(8)]
        set_filter(listening, [*far, ipaddress.ip_address("127.0.0.3"), ipaddress.ip_address("127.0.0.4")])
        for barred in ("127.0.0.3", "127.0.0.4"):
            with pytest.raises(TimeoutError):
                knock(listening, barred)
        knock(listening, "127.0.0.2").close()
        set_filter(listening, [])
        knock(listening, "127.0.0.3").close()
        set_filter(listening, [])  # nothing to end


@needs_linux
def test_a_closed_door_keeps_nobody_out():
    with closing(listen("127.0.0.1")) as listening:
        door = Door([listening.getsockname()[1]])
        with closing(knock(listening)) as outside, closing(listening.accept()[0]):
            assert door.turn_away("127.0.0.1", outside.getsockname()[1], 0.0)
        door.close()
        knock(listening).close()


@needs_linux
def test_connections_that_end_while_they_are_looked_at_are_passed_over(monkeypatch):
    with closing(listen("127.0.0.1")) as listening, ExitStack() as stack:
        monkeypatch.setattr(door_module, "_MANY_FILES", 0)
        door = Door([listening.getsockname()[1]])
        for _ in range(3):
            stack.enter_context(closing(knock(listening)))
            stack.enter_context(closing(listening.accept()[0]))

        def ends(one):
            raise OSError(107, "Transport endpoint is not connected")

        monkeypatch.setattr(door_module.socket.socket, "getpeername", ends)
        assert door.thin_out([], 0.0) == 0
        assert not door.turn_away("127.0.0.1", 1, 0.0)


def test_what_is_no_address_of_a_connection_is_left_alone():
    door = Door([1])
    assert not door.turn_away("somewhere", 1, 0.0)
    assert not door.turn_away("10.255.255.1", 1, 0.0)
    door.close()


@needs_linux
def test_a_host_of_which_too_many_wait_is_kept_out_and_those_that_are_known_do_not_count():
    with closing(listen("127.0.0.1")) as listening, ExitStack() as stack:
        listening.listen(1024)
        door = Door([listening.getsockname()[1]])
        known, num_open = [], 2 * _MANY_FILES
        for _ in range(num_open):
            outside = stack.enter_context(closing(knock(listening, timeout_s=5.0)))
            stack.enter_context(closing(listening.accept()[0]))
            known.append(outside.getsockname())
        assert door.thin_out(known, 0.0) == 0
        assert door.thin_out(known[MAX_WAITING:], 0.0) == 0
        knock(listening, timeout_s=5.0).close()
        assert door.thin_out(known[MAX_WAITING + 1 :], 0.0) == 1
        with pytest.raises(TimeoutError):
            knock(listening)
        assert door.thin_out([], 0.0) == 0  # it is barred already
        door.let_in(BARRED_S)
        knock(listening).close()
    assert door.thin_out([], 0.0) == 0


@needs_linux
def test_who_waits_in_numbers_is_kept_out_where_no_file_is_left_to_look_with(monkeypatch):
    with closing(listen("127.0.0.1")) as listening, ExitStack() as stack:
        monkeypatch.setattr(door_module, "_MANY_FILES", 0)
        door = Door([listening.getsockname()[1]])
        for _ in range(MAX_WAITING + 1):
            stack.enter_context(closing(knock(listening, timeout_s=5.0)))
            stack.enter_context(closing(listening.accept()[0]))

        def none_left(*given):
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(door_module.os, "listdir", none_left)
            patch.setattr(door_module.os, "dup", none_left)
            patch.setattr(door_module.os, "sysconf", lambda name: 1024)
            assert door.thin_out([], 0.0) == 1
        with pytest.raises(TimeoutError):
            knock(listening)
        door.close()
        knock(listening).close()


@needs_linux
def test_of_ipv6_all_that_one_host_may_have_is_counted_and_kept_out_together():
    one, other, far = (ipaddress.ip_address(f"2001:db8:0:{part}") for part in ("1::1", "1::2", "2::1"))
    assert door_module._barred_as(one) == door_module._barred_as(other) != door_module._barred_as(far)
    assert door_module._barred_as(ipaddress.ip_address("10.0.0.1")) == ipaddress.ip_address("10.0.0.1")
