"""All is said again more and more seldom, sooner after news and to newcomers; a model is asked of all who have it."""

import pytest

from bdfl.protocol.events import FetchBlob, PeersAppeared, Send, SetTimer, Started, Timer, TimerFired
from bdfl.protocol.messages import Hearsay, Proposal
from bdfl.protocol.sync import MAX_DOUBLINGS, NEWCOMER_SHARE, NEWS_INTERVALS
from tests.protocol.manual_network import TIMING, Table, make_block

RESEND_NS = TIMING.resend_ns


@pytest.fixture
def table():
    table = Table()
    table.start()
    return table


def waits(effects):
    return [effect.delay_ns for effect in effects if isinstance(effect, SetTimer) and effect.timer is Timer.RESEND]


def say_again(table, seat, count):
    """Lets the timer fire so many times, and returns what it is set to, in intervals."""
    return [waits(table.fire(seat, Timer.RESEND))[-1] // RESEND_NS for _ in range(count)]


def update_of(table, seat):
    """The message with the seat's update, and the digest of its model."""
    message = next(effect.message for effect in table.train(seat) if isinstance(effect, Send))
    return message, message.content.updates[0].update.model


def asked(effects, blob):
    return [effect.holder for effect in effects if isinstance(effect, FetchBlob) and effect.blob == blob]


def test_everything_is_said_more_and_more_seldom_until_the_next_height(table):
    seat = table.seats[0]
    assert say_again(table, seat, 7) == [4, 8, 16, 32, 64, 64, 64]  # it was said at the start
    assert 2**MAX_DOUBLINGS == 64
    table.play_round()
    assert seat.state.chain.height == 1
    assert waits(seat.effects)[-1] == RESEND_NS
    assert say_again(table, seat, 2) == [2, 4]


def test_a_new_attempt_begins_with_the_shortest_wait(table):
    seat = table.seats[0]
    say_again(table, seat, 5)
    assert waits(seat.give(TimerFired(Timer.ATTEMPT, 1, 1))) == [RESEND_NS]
    assert seat.state.attempt == 2
    assert say_again(table, seat, 2) == [2, 4]


def test_news_hasten_what_is_said_again_and_what_is_known_does_not(table):
    seat = table.seats[0]
    say_again(table, seat, 6)
    message, blob = update_of(table, table.seats[1])
    assert waits(seat.hear(message)) == [NEWS_INTERVALS * RESEND_NS]
    assert waits(seat.hear(message)) == []
    say_again(table, seat, 1)
    assert waits(seat.receive_blob(table.blobs[blob])) == [NEWS_INTERVALS * RESEND_NS]
    assert waits(seat.receive_blob(table.blobs[blob])) == []


def test_a_refused_message_is_no_news(table):
    seat = table.seats[0]
    say_again(table, seat, 6)
    assert waits(seat.receive_blob(b"of no model")) == []


def test_who_appears_is_told_soon_and_nothing_is_put_off(table):
    seat = table.seats[0]
    say_again(table, seat, 3)
    assert seat.give(PeersAppeared()) == [SetTimer(Timer.RESEND, 1, 1, RESEND_NS // NEWCOMER_SHARE)]
    assert seat.give(PeersAppeared(), RESEND_NS // 16) == []


def test_a_node_that_is_done_says_nothing_to_newcomers():
    table = Table(last_height=1)
    table.start()
    table.play_round()
    assert table.seats[0].give(PeersAppeared()) == []


def test_a_wanted_model_is_asked_once_of_everybody_who_tells_of_it(table):
    seat = table.seats[0]
    message, blob = update_of(table, table.seats[1])
    said = Hearsay(1, updates=message.content.updates)
    told = [seat.hear(message), *(seat.hear(table.seats[other].message(said)) for other in (2, 3, 2))]
    assert [asked(effects, blob) for effects in told] == [[1], [2], [3], []]
    seat.receive_blob(table.blobs[blob], 2)
    assert asked(seat.hear(table.seats[3].message(said)), blob) == []


def test_a_block_tells_of_the_models_that_it_rests_on(table):
    seat, others = table.seats[0], table.seats[1:]
    seat.give(Started())
    for other in table.seats:
        table.deliver(other, [*table.train(other), *table.measure(other)], to=others)
    block = make_block(others[0])
    models = [signed.update.model for signed in block.body.updates if signed.update.client != seat.number]
    told = seat.hear(others[0].message(Proposal(block)))
    assert [asked(told, blob) for blob in models] == [[1]] * 3
    told = seat.hear(others[1].message(Proposal(block)))
    assert [asked(told, blob) for blob in models] == [[2]] * 3
