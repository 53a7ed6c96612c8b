"""Attacking process: reads its order from standard input, reports readiness and progress, and stops on request.

Lines in: an `Order`, an empty line to begin, `stop`. Lines out: `Said`.
"""

import sys
import threading
from contextlib import suppress

import msgspec

from campaigns.hostile.attacks import IMPERSONATED, Who, find_attack
from campaigns.hostile.counters import Tally
from campaigns.hostile.member import attack_as_member, attack_in_others_names
from campaigns.hostile.orders import Order, Said
from campaigns.hostile.stranger import attack_as_stranger

_SAY_EVERY_S = 0.25


def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=Order)
    tally, is_over = Tally(), threading.Event()
    if find_attack(order.attack).who is Who.STRANGER:
        attack = attack_as_stranger
    else:
        attack = attack_in_others_names if order.attack == IMPERSONATED else attack_as_member
    teller = threading.Thread(target=_tell, args=(tally, is_over))

    def on_ready() -> None:
        _say(tally.read(is_ready=True))
        sys.stdin.readline()
        tally.begin()
        threading.Thread(target=_listen, args=(is_over,), daemon=True).start()
        teller.start()

    attack(order, tally, is_over, on_ready)
    teller.join()


def _listen(is_over: threading.Event) -> None:
    """Wait for `stop`, or for the end of input when the campaign has gone."""
    sys.stdin.readline()
    is_over.set()


def _tell(tally: Tally, is_over: threading.Event) -> None:
    while not is_over.wait(_SAY_EVERY_S):
        _say(tally.read())
    _say(tally.read(is_over=True))


def _say(said: Said) -> None:
    with suppress(BrokenPipeError):  # the campaign process has gone
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
