"""Draws docs/figures/stall.svg and .png: round 10 of the paper's CIFAR-10 scenario, scheduled by `drc` until then.

Run from the root of the repository: python docs/figures/make_stall.py
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from bdfl.experiment.simulation import draw_run, round_problems
from bdfl.report.stall import draw_stall
from bdfl.report.style import save_picture
from bdfl.scenario import load_scenario
from bdfl.scenario.shipped import find_scenario
from bdfl.scheduling.drc import drc
from bdfl.scheduling.problem import RoundProblem
from bdfl.scheduling.queues import next_queue

ROUND = 10


def stall_problem() -> RoundProblem:
    """The round that the figure shows, with the queues that `drc` left."""
    scenario = load_scenario(find_scenario("paper-cifar10"), [f"rounds={ROUND}"])
    problems = round_problems(scenario, draw_run(scenario))
    queue = np.zeros(scenario.clients.count)
    for problem in problems[:-1]:
        queue = next_queue(queue, problem.participation_rate, drc(replace(problem, queue=queue)).selected)
    return replace(problems[-1], queue=queue)


if __name__ == "__main__":
    for path in save_picture(draw_stall(stall_problem()), Path(__file__).parent, "stall"):
        print(f"wrote {path}")
