"""Sweep files that several tests play."""

SMALL = """
scenario = "minimal"
rounds = 3
seeds = 3
schedulers = ["drc", "random"]

[grid]
"radio.bandwidth_hz" = [90e3, 180e3]
"scheduler.tradeoff" = [10, 100]
"""
LASTING = """
scenario = "paper-cifar10"
rounds = 20
seeds = 20
schedulers = ["drc", "random"]

[grid]
"energy.budget_j" = [0.4, 0.8]
"""  # long enough for both nodes to take part
LEARNING = ("rounds=3", "learning.local_steps=2", 'learning.personal=["3"]')  # of the scenario minimal
