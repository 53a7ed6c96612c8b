"""Members that only dial out are relayed by any member that listens, and a relay gains no power over others."""

import random
import threading
import time
from contextlib import ExitStack

import pytest
import zenoh

from bdfl.encoding import digest, encode
from bdfl.protocol.messages import encode_message
from bdfl.transports.interfaces import Offer
from bdfl.transports.live.access_point import open_access_point
from bdfl.transports.live.admission import Refusal
from bdfl.transports.live.envelope import Envelope, Purpose
from bdfl.transports.live.zenoh_config import Line, Role, chain_keys, line_of, session_config
from bdfl.transports.live.zenoh_link import ZenohLink
from tests.live.network_of_links import CHAIN, Links, Listener, free_ports, message_of, wait_until, writer_of
from tests.live.test_zenoh_link import say_until_heard

KEYS = chain_keys(CHAIN)
DATA = random.Random(3).randbytes(700_000)
BLOB = digest(DATA)


def addresses(count):
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def open_relayed(net, num_listening):
    """The first ones listen and know the first of all; the others dial one of them each."""
    listening = addresses(num_listening)
    for number in range(len(net.signers)):
        if number < num_listening:
            net.open(number, (listening[number],), () if number == 0 else (listening[0],))
        else:
            net.open(number, (), (listening[number % num_listening],))
    net.wait_for_all()
    return listening


def fetch(net, asker, holder):
    net.listeners[asker].fetched.clear()
    net.links[asker].fetch(BLOB, len(DATA), [holder])
    wait_until(lambda: net.listeners[asker].fetched, f"{asker} has the blob of {holder}")
    net.links[asker].forget_fetches()
    return net.listeners[asker].fetched[0]


def raw_client(stack, net, number, peer):
    """A zenoh client with a member's certificate that keeps to no rules of ours."""
    keys, tls = chain_keys(CHAIN), net.tls[number]
    members = range(len(net.signers))
    config = session_config(
        Role.CLIENT, (), (peer,), tls, keys=keys, members=members, lease_s=3.0, max_payload=10**7, number=number
    )
    session = zenoh.open(config)
    stack.callback(session.close)
    return session


@pytest.mark.parametrize(("num_members", "num_listening"), [(3, 1), (5, 1), (8, 1), (5, 2)])
def test_members_that_only_dial_out_reach_everybody_through_whoever_listens(tmp_path, num_members, num_listening):
    with Links(num_members, tmp_path) as net:
        open_relayed(net, num_listening)
        say_until_heard(net, 1)
        for listener in net.listeners:
            listener.blobs[BLOB] = Offer(DATA)
        first, last = num_listening, num_members - 1
        for asker, holder in ((first, last), (last, first), (0, last), (last, 0)):
            assert fetch(net, asker, holder) == (holder, DATA)
            net.links[asker].send(holder, message_of(asker, 50))
            wait_until(lambda a=asker, h=holder: 50 in net.listeners[h].heights(a), f"{holder} hears {asker}")


def test_clients_of_members_and_of_access_points_reach_each_other(tmp_path):
    with Links(4, tmp_path, num_access_points=1) as net, ExitStack() as stack:
        point, member = addresses(2)
        stack.enter_context(open_access_point((point,), (), net.ap_tls[0]))
        net.open(0, (member,), (point,), num_access_points=1)
        net.open(1, (), (member,), num_access_points=1)
        net.open(2, (), (point,), num_access_points=1)
        net.open(3, (), (member,), num_access_points=1)
        net.wait_for_all()
        say_until_heard(net, 1)
        net.listeners[1].blobs[BLOB] = Offer(DATA)
        assert fetch(net, 2, 1) == (1, DATA)


def test_a_client_whose_relay_is_gone_is_heard_through_another(tmp_path):
    with Links(4, tmp_path) as net:
        first, second = addresses(2)
        net.open(0, (first,), ())
        net.open(1, (second,), (first,))
        net.open(2, (), (first, second))
        net.open(3, (), (second,))
        net.wait_for_all()
        say_until_heard(net, 1)
        net.links[0].close()
        say_until_heard(net, 2, (1, 2, 3))
        wait_until(lambda: net.listeners[3].present == {1, 2}, "who is gone is not present")


def test_a_client_whose_first_peer_is_not_there_takes_the_next(tmp_path):
    with Links(3, tmp_path) as net:
        nobody, second = addresses(2)
        net.open(1, (second,), ())
        net.open(2, (), (nobody, second))
        net.wait_for_all()


def test_a_relay_cannot_use_up_what_is_looked_into_of_a_member_that_is_connected_itself(tmp_path):
    """Member 1 forges in the name of member 2, which listens: on its own prefix only, and at its own cost."""
    with Links(3, tmp_path) as net, ExitStack() as stack:
        zero, two = addresses(2)
        net.open(0, (zero,), ())
        net.open(2, (two,), (zero,))
        net.wait_for_all()
        config = session_config(
            Role.PEER, (), (zero, two), net.tls[1], keys=KEYS, members=range(3), lease_s=3.0, max_payload=10**7
        )
        session = zenoh.open(config)
        stack.callback(session.close)
        token = session.liveliness().declare_token(KEYS.via(1).here(2, "abc"))
        forged = encode(Envelope(2, None, 2**40, "", encode_message(message_of(2, 8)), bytes(48)))

        def is_refused():
            for key in (KEYS.to_all(2), KEYS.via(0).to_all(2), KEYS.via(2).to_all(2), KEYS.via(1).to_all(2)):
                for _ in range(100):
                    session.put(key, forged)
            time.sleep(0.02)
            return net.links[0].counters().get("refused_rate", 0) > 100

        wait_until(is_refused, "what is looked into on its line is used up")
        gate = net.links[0]._admission
        assert gate._members[2].lines.keys() <= {None, 1}  # nothing came under others' prefixes
        say_until_heard(net, 9)
        assert net.links[0].counters().get("slowed", 0) == 0
        assert 8 not in net.listeners[0].heights(2)
        token.undeclare()


def test_a_client_speaks_in_its_own_name_only(tmp_path):
    with Links(3, tmp_path) as net, ExitStack() as stack:
        (zero,) = addresses(1)
        net.open(0, (zero,), ())
        net.open(2, (), (zero,))
        net.wait_for_all()
        session = raw_client(stack, net, 1, zero)
        token = session.liveliness().declare_token(KEYS.via(0).here(1, "abc"))
        garbage = b"garbage"

        def is_own_heard():
            for key in (KEYS.via(0).to_all(2), KEYS.via(0).to_one(0, 2), KEYS.via(2).to_all(2), KEYS.to_all(2)):
                session.put(key, garbage)
            session.put(KEYS.via(0).to_all(1), garbage)
            time.sleep(0.01)
            return net.links[0].counters().get("refused_encoding", 0) > 10

        wait_until(is_own_heard, "what it says as itself")
        say_until_heard(net, 1)
        assert {sender for sender, _ in net.listeners[0].refused} == {1}
        token.undeclare()


@pytest.mark.parametrize("is_authentic", [True, False])
def test_the_others_are_heard_while_a_client_floods_through_the_relay(tmp_path, is_authentic):
    with Links(4, tmp_path) as net, ExitStack() as stack:
        (zero,) = addresses(1)
        net.open(0, (zero,), ())
        net.open(2, (), (zero,))
        net.open(3, (), (zero,))
        net.wait_for_all()
        session = raw_client(stack, net, 1, zero)
        token = session.liveliness().declare_token(KEYS.via(0).here(1, "abc"))
        writer, is_over = writer_of(1, num_members=4), threading.Event()

        def flood():
            while not is_over.is_set():
                data = writer.write(Purpose.MESSAGE, None, b"authentic nonsense") if is_authentic else b"nonsense"
                session.put(KEYS.via(0).to_all(1), data)

        flooder = threading.Thread(target=flood)
        flooder.start()
        try:
            wait_until(lambda: net.links[0].counters().get("refused_rate", 0) > 100, "more than is looked into")
            say_until_heard(net, 1, (0, 2, 3))
        finally:
            is_over.set()
            flooder.join()
        token.undeclare()


def test_presence_of_who_is_no_member_or_in_many_sessions_is_not_kept(tmp_path):
    with Links(3, tmp_path) as net, ExitStack() as stack:
        (zero,) = addresses(1)
        net.open(0, (zero,), ())
        config = session_config(
            Role.PEER, (), (zero,), net.tls[1], keys=KEYS, members=range(3), lease_s=3.0, max_payload=10**7
        )
        session = zenoh.open(config)
        stack.callback(session.close)
        names = [KEYS.via(1).here(number, "abc") for number in range(3, 60)] + [
            KEYS.here(1, f"abc{number}") for number in range(60)
        ]
        tokens = [session.liveliness().declare_token(name) for name in (*names, KEYS.via(1).here(2, "abc"))]
        wait_until(lambda: net.listeners[0].present == {1, 2}, "members are there")
        assert net.links[0]._tokens.keys() == {Line(1), Line(2, 1)}
        assert len(net.links[0]._tokens[Line(1)]) <= 4
        for token in tokens:
            token.undeclare()


@pytest.mark.parametrize("is_listening", [True, False])
def test_two_nodes_with_one_key_notice_each_other(tmp_path, is_listening):
    with Links(3, tmp_path) as net, ExitStack() as stack:
        zero, one, twin_address = addresses(3)
        net.open(0, (zero,), (), lease_s=0.5)
        net.open(1, (one,) if is_listening else (), (zero,), lease_s=0.5)
        net.open(2, (), (zero,), lease_s=0.5)
        net.wait_for_all()
        listen = (twin_address,) if is_listening else ()
        twin = ZenohLink(net.settings(1, listen, (zero,), lease_s=0.5, incarnation=2))
        twin.open(Listener())
        stack.callback(twin.close)
        wait_until(lambda: net.links[1].has_twin, "the first hears of the second")
        assert not net.links[0].has_twin
        assert not net.links[2].has_twin


def test_lines_are_read_from_keys_as_they_are_written():
    assert line_of(KEYS.to_all(3)) == Line(3)
    assert line_of(KEYS.via(1).to_one(2, 3)) == Line(3, 1)
    assert line_of(KEYS.via(1).here(3, "abc")) == Line(3, 1)
    for key in ("bdfl", "bdfl/x", "bdfl/x/all/03", "bdfl/x/all/*", "bdfl/x/via/one/all/3", "bdfl/x/via/01/all/3"):
        assert line_of(key) is None, key


def test_a_line_by_way_of_somebody_who_is_no_member_is_refused(tmp_path):
    with Links(3) as net:
        net.open_all()
        gate = net.links[0]._admission
        gate.admit(Line(1, 2), 10, 0)
        gate.admit(Line(1, 0), 10, 0)
        with pytest.raises(Exception, match=Refusal.STRANGER.value):
            gate.admit(Line(1, 9), 10, 0)
