"""A process that only burns processor time: so many cores' worth, given as its argument, until its input ends.

What it burned (s) is the line that it says at the end.
"""

import hashlib
import math
import sys
import threading
import time

_SLICE = bytes(2**20)  # hashing it takes about a millisecond, without Python's lock


def main() -> None:
    cores = float(sys.argv[1])
    is_over = threading.Event()
    began_s = time.process_time()
    num_threads = max(1, math.ceil(cores))
    threads = [threading.Thread(target=_burn, args=(cores / num_threads, is_over)) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    is_over.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{time.process_time() - began_s}\n")


def _burn(share: float, is_over: threading.Event) -> None:
    """Keeps one thread's processor time at a share of the time that passed."""
    began_s, began_cpu_s = time.monotonic(), time.thread_time()
    while not is_over.is_set():
        if time.thread_time() - began_cpu_s < share * (time.monotonic() - began_s):
            hashlib.sha256(_SLICE).digest()
        else:
            time.sleep(0.001)


if __name__ == "__main__":
    main()
