"""CPU load process: burns the profile in its first line of input, from the second line until input ends.

At the end it prints the processor time (s) it burned.
"""

import hashlib
import sys
import threading
import time

import msgspec

from campaigns.hostile.cpu_profile import Effort

_SLICE = bytes(2**18)  # takes a fraction of a millisecond
_NAP_S = 0.02  # shorter naps would cost CPU themselves


def main() -> None:
    effort = msgspec.json.decode(sys.stdin.readline(), type=Effort)
    is_over = threading.Event()
    sys.stdin.readline()
    threading.Thread(target=_wait, args=(is_over,), daemon=True).start()
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while not is_over.is_set():
        if time.process_time() - began_cpu_s < effort.till(time.monotonic() - began_s):
            hashlib.sha256(_SLICE).digest()
        else:
            time.sleep(_NAP_S)
    sys.stdout.write(f"{time.process_time() - began_cpu_s}\n")


def _wait(is_over: threading.Event) -> None:
    sys.stdin.readline()
    is_over.set()


if __name__ == "__main__":
    main()
