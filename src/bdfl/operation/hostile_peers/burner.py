"""A process that only burns processor time: so many cores' worth, given as its argument, until its input ends.

What it burned (s) is the line that it says at the end.
"""

import hashlib
import sys
import threading
import time

_NUM_THREADS = 6  # about as many as a zenoh session keeps busy: the machine shares its cores out by threads
_SLICE = bytes(2**22)  # hashing takes milliseconds, all of it without Python's lock, for which threads would wait


def main() -> None:
    cores = float(sys.argv[1])
    is_over = threading.Event()
    began_s, began_cpu_s = time.monotonic(), time.process_time()

    def burn() -> None:
        """Keeps the process's time at its share of the time that passed."""
        while not is_over.is_set():
            if time.process_time() - began_cpu_s < cores * (time.monotonic() - began_s):
                hashlib.sha256(_SLICE).digest()
            else:
                time.sleep(0.001)

    threads = [threading.Thread(target=burn) for _ in range(_NUM_THREADS)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    is_over.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{time.process_time() - began_cpu_s}\n")


if __name__ == "__main__":
    main()
