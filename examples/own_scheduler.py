"""A scheduler of your own: the clients that have waited longest train. Run it, and it is judged."""

import numpy as np

from bdfl.scheduling.drc import start_round
from bdfl.scheduling.problem import Decision, RoundProblem, infeasible_decision
from bdfl.scheduling.registry import check_scheduler


def longest_queues(problem: RoundProblem, *, extra: int = 0) -> Decision:
    """The m candidates with the longest queues and `extra` more, at the frequencies that `drc` starts from."""
    start = start_round(problem)
    if start.reason is not None:
        return infeasible_decision(problem, start.reason)
    by_queue = start.candidates[np.argsort(-problem.queue[start.candidates], kind="stable")]
    selected = np.zeros(problem.num_clients, dtype=np.bool_)
    selected[by_queue[: problem.min_clients + extra]] = True
    return Decision(
        selected=selected,
        cpu_hz=np.where(selected, start.cpu_hz, 0.0),
        mining_hz=start.mining_hz,
        power_w=np.where(selected, problem.power_w, 0.0),
    )


if __name__ == "__main__":
    print(check_scheduler(longest_queues))
