"""A policy of five weights learns whom to schedule, run by run, plotted beside drc and exact on the same runs."""

import sys
from pathlib import Path

import gymnasium
import numpy as np

from bdfl.gym import SET_ID
from bdfl.report.figures import draw_agents
from bdfl.report.style import save_picture
from bdfl.scheduling.registry import get_scheduler

num_runs, folder, scenario = [*sys.argv[1:], *("30", "results", "paper-cifar10")[len(sys.argv) - 1 :]]
world, weights, rng = gymnasium.make(SET_ID, scenario=scenario).unwrapped, np.zeros(5), np.random.default_rng(0)
schedulers, values = {name: get_scheduler(name) for name in ("drc", "exact")}, {"agent": [], "drc": [], "exact": []}
for run, name in ((run, name) for run in range(int(num_runs)) for name in values):
    (seen, _), over, steps = world.reset(seed=run), False, []
    while not over:
        columns = seen.reshape(4, -1)  # channel, queue, budget and speed of every client, set against the others'
        columns = (columns - columns.mean(axis=1)[:, None]) / (columns.std(axis=1)[:, None] + 1e-3)
        chance = 1.0 / (1.0 + np.exp(-weights[:4] @ columns - weights[4]))
        trains = rng.random(len(chance)) < chance
        steps.append([*columns @ (trains - chance), np.sum(trains - chance)])  # gradient of the log of the chance
        seen, _, _, over, _ = world.step(trains) if name == "agent" else world.play(schedulers[name](world.problem))
    values[name].append((objective := world.record.objective).mean())
    if name == "agent":  # REINFORCE: towards what was better than the run's mean
        weights += np.mean(steps * (objective.mean() - objective)[:, None], axis=0) / objective.std()
print(*save_picture(draw_agents(values, label="mean objective"), Path(folder), "rl-agent"), sep="\n")
