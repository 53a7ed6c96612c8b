from bdfl.transports.live.admission import Limits, MutedSenders, ThrottledSenders

S = 1_000_000_000
LIMITS = Limits(patience=10, patience_per_s=1, mute_s=5.0, max_mute_s=12.0)


def flood(mutes, member, now_ns):
    """How much had to be refused until the member was muted."""
    return next(count for count in range(1, 1000) if mutes.note(member, 0, now_ns))


def test_who_has_too_much_refused_is_muted_for_a_while_and_others_are_not():
    mutes = MutedSenders(LIMITS)
    assert flood(mutes, 3, 0) == LIMITS.patience + 1
    assert mutes.members(0) == {3}
    assert mutes.next_end_ns(0) == 5 * S
    assert not mutes.note(2, 0, 0)
    assert mutes.members(5 * S) == frozenset()
    assert mutes.next_end_ns(5 * S) is None


def test_refusals_now_and_then_are_forgotten():
    mutes = MutedSenders(LIMITS)
    assert not any(mutes.note(1, 0, second * S) for second in range(1000))


def test_large_messages_cost_more_patience():
    mutes = MutedSenders(LIMITS)
    assert not mutes.note(1, 4096, 0)
    assert mutes.note(2, 4 * 2**20, 0)


def test_each_mute_is_twice_as_long_up_to_a_limit_until_all_is_forgiven():
    mutes = MutedSenders(LIMITS)
    now_ns, lengths = 0, []
    for _ in range(4):
        flood(mutes, 1, now_ns)
        end_ns = mutes.next_end_ns(now_ns)
        lengths.append((end_ns - now_ns) // S)
        now_ns = end_ns
    assert lengths == [5, 10, 12, 12]
    now_ns += 121 * S
    flood(mutes, 1, now_ns)
    assert mutes.next_end_ns(now_ns) == now_ns + 5 * S


def test_what_is_refused_during_a_mute_does_not_prolong_it():
    mutes = MutedSenders(LIMITS)
    assert mutes.end_ns(1) == 0
    flood(mutes, 1, 0)
    assert not any(mutes.note(1, 10**6, S) for _ in range(100))
    assert mutes.next_end_ns(S) == mutes.end_ns(1) == 5 * S


def test_a_name_in_which_too_much_arrives_is_slow_until_a_while_after_the_last_that_had_to_wait():
    pressed = ThrottledSenders(Limits(slow_s=10.0))
    assert pressed.note(3, 0)
    assert not pressed.note(3, 4 * S)
    assert pressed.note(2, 5 * S)
    assert pressed.members(13 * S) == {2, 3}
    assert pressed.next_end_ns(13 * S) == 14 * S
    assert pressed.members(14 * S) == {2}
    assert pressed.next_end_ns(15 * S) is None
    assert pressed.note(3, 20 * S)
