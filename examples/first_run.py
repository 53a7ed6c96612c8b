"""Load a scenario, change it, train, draw the accuracy over simulated time, and verify the chain."""

import matplotlib.pyplot as plt
import numpy as np

import bdfl

scenario = bdfl.load_scenario("quickstart", ["rounds=10", "clients.count=6", "energy.budget_j=0.8"])
run = bdfl.run(scenario)
plt.plot(np.cumsum(run.record.delay_s), 100 * run.learning.accuracy, marker="o")
plt.xlabel("simulated time in s")
plt.ylabel("accuracy in %")
plt.savefig("accuracy.png")
checked = bdfl.verify_chain(run.folder)
print(f"{100 * run.learning.final_accuracy:.1f} %, {checked.height} blocks, valid: {checked.is_valid}")
