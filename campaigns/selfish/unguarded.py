"""A live node without the rules of fair proposing, to show their effect; takes the arguments of `bdfl`.

It waits for all statements until the deadline, and delays no block because of its proposer.
"""

from unittest.mock import patch

from bdfl.cli import main
from bdfl.ledger.block import Block
from bdfl.protocol.transition import Draft


def is_never_head_start(draft: Draft, block: Block) -> bool:
    return False


def is_given_up_late(draft: Draft, member: int) -> bool:
    return draft.is_deadline_over


if __name__ == "__main__":
    with (
        patch("bdfl.protocol.proposals.is_head_start", is_never_head_start),
        patch("bdfl.protocol.proposals.is_given_up", is_given_up_late),
        patch("bdfl.protocol.updates.is_given_up", is_given_up_late),
    ):
        main()
