"""Who plays whom."""

from bdfl.flower.rounds import Roster


def test_told_numbers_go_first_and_the_rest_follow_in_order():
    roster = Roster(4)
    assert roster.find_strangers([30, 10, 20]) == [10, 20, 30]
    assert roster.enrol([30, 10, 20], {30: 0}) == []
    assert [roster.node_of(client) for client in range(4)] == [30, 10, 20, None]


def test_a_number_told_twice_or_out_of_range_is_as_good_as_none():
    roster = Roster(3)
    roster.enrol([1, 2, 3], {1: 2, 2: 2, 3: 9})
    assert [roster.node_of(client) for client in range(3)] == [2, 3, 1]


def test_nodes_keep_their_numbers_and_leave_them_when_they_go():
    roster = Roster(2)
    roster.enrol([1, 2], {})
    assert roster.enrol([2, 1, 3], {}) == [3]
    assert roster.enrol([3, 2], {}) == []
    assert [roster.node_of(client) for client in range(2)] == [3, 2]
    assert roster.enrol([1, 2, 3], {}) == [1]  # who comes back finds its number taken
    assert roster.find_strangers([1, 2, 3]) == []
