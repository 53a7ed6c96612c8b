"""Run by `test_benchmarks.py` as a side: it plays rounds of nothing, with a helper that would never end by itself."""

import subprocess
import sys

from benchmarks.learning.gate import Gate


def main() -> None:
    gate = Gate()
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    while gate.opens():
        pass


if __name__ == "__main__":
    main()
