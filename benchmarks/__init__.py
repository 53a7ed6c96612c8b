"""How fast the schedulers are, and a general solver beside them: `python -m benchmarks --help`."""
