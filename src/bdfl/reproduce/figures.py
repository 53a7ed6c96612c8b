"""The paper's figures 2 to 4: backlog, energy, cumulative delay."""

from itertools import pairwise

import numpy as np

from bdfl.errors import BdflError
from bdfl.experiment.comparison import PAPER_SCHEDULERS
from bdfl.experiment.measures import cumulative_delay, energy_curves, mean_backlog, mean_curves, running_mean
from bdfl.report.figures import Curve, Panel, draw_curves
from bdfl.report.style import CYCLE, INK, MINING, TRAINING, UPLOAD, colour_of
from bdfl.reproduce.paper import DATA_SET_NAMES, DATA_SETS, PAPER_TIME_S
from bdfl.reproduce.results import (
    Cell,
    NumberTable,
    Reproduction,
    Settings,
    Target,
    Verdict,
    finish,
    load_shipped,
    load_shipped_curves,
    play_seeds,
)
from bdfl.scenario import Scenario

SETTLED_SHARE = 0.15  # of the backlog: allowed change of its mean between the last two quarters


# Figure 2: mean queue backlog.


def reproduce_fig2(settings: Settings) -> Reproduction:
    panels: list[Panel] = []
    rows: list[list[Cell]] = []
    verdicts: list[Verdict] = []
    for letter, data_set in zip("ab", DATA_SETS, strict=True):
        scenarios = sorted(load_shipped_curves(f"fig2-{data_set}-v", settings), key=lambda one: one.scheduler.tradeoff)
        runs = play_seeds(scenarios, mean_backlog, settings)
        curves, halves, settled = [], [], []
        for place, (scenario, backlogs) in enumerate(zip(scenarios, runs, strict=True)):
            backlog = np.mean(backlogs, axis=0)
            quarters = [float(np.mean(part)) for part in np.array_split(backlog, 4)]
            change = abs(quarters[3] - quarters[2]) / max(quarters[3], quarters[2], 1e-12)
            label = f"V = {scenario.scheduler.tradeoff:g}"
            curves.append(Curve(label, CYCLE[place], backlog))
            halves.append(float(np.mean(quarters[2:])))
            settled.append(change)
            rows.append([DATA_SET_NAMES[data_set], label, *quarters, 100.0 * change])
        panels.append(Panel(f"{letter}  {DATA_SET_NAMES[data_set]}", curves))
        verdicts += [
            Verdict(
                f"{DATA_SET_NAMES[data_set]}: the larger V, the larger the backlog",
                all(lower < higher for lower, higher in pairwise(halves)),
                f"second-half means {', '.join(f'{half:.2f}' for half in halves)}",
            ),
            Verdict(
                f"{DATA_SET_NAMES[data_set]}: the backlog settles",
                all(change <= SETTLED_SHARE for change in settled),
                f"last two quarters differ by up to {100 * max(settled):.0f} %, allowed {100 * SETTLED_SHARE:.0f} %",
            ),
        ]
    table = NumberTable(
        "quarters",
        "Figure 2: mean queue backlog, by quarters of the run",
        ["data", "V", "1st", "2nd", "3rd", "4th", "change (%)"],
        rows,
    )
    picture = draw_curves(panels, value_label="mean queue backlog (rounds owed)", value_column="mean_backlog")
    return finish(Target.FIG2, settings, [table], verdicts, {"fig2": picture})


# Figure 3: energy.


def reproduce_fig3(settings: Settings) -> Reproduction:
    scenarios = sorted(load_shipped_curves("fig3a-e", settings), key=_budget_j)
    energies = [mean_curves(runs) for runs in play_seeds(scenarios, energy_curves, settings)]
    parts_scenario = load_shipped_curves("fig3b-e", settings)
    parts = mean_curves(play_seeds(parts_scenario, energy_curves, settings)[0])
    limit_j = _budget_j(parts_scenario[0])
    limits = [_budget_j(scenario) for scenario in scenarios]
    curves = [
        Curve(f"{limit:g} J", CYCLE[place], energy.total_j)
        for place, (limit, energy) in enumerate(zip(limits, energies, strict=True))
    ]
    so_far = [
        Curve(f"{limit:g} J, all clients so far", CYCLE[place], running_mean(energy.all_clients_j), thin=True)
        for place, (limit, energy) in enumerate(zip(limits, energies, strict=True))
    ]
    picture_a = draw_curves(
        [Panel("Energy by budget", [*curves, *so_far], key=("clients that train", "all clients, mean so far"))],
        value_label="mean energy per client (J)",
        value_column="mean_energy_j",
    )
    picture_b = draw_curves(
        [
            Panel(
                f"Energy of a client that trains, budget {limit_j:g} J",
                [
                    Curve("total", INK, parts.total_j),
                    Curve("training", TRAINING, parts.training_j),
                    Curve("upload", UPLOAD, parts.upload_j),
                    Curve("mining", MINING, parts.mining_j),
                ],
            )
        ],
        value_label="mean energy per client (J)",
        value_column="mean_energy_j",
    )
    shares = [float(np.mean(energy.total_j)) / limit for limit, energy in zip(limits, energies, strict=True)]
    highest = max(float(np.max(energy.highest_share)) for energy in energies)
    table = NumberTable(
        "means",
        "Figure 3: mean energy per client and round (J)",
        ["budget", "training", "upload", "mining", "total", "of budget (%)", "all clients"],
        [
            [
                f"{limit:g} J",
                *(
                    float(np.mean(part))
                    for part in (energy.training_j, energy.upload_j, energy.mining_j, energy.total_j)
                ),
                100.0 * share,
                float(np.mean(energy.all_clients_j)),
            ]
            for limit, energy, share in zip(limits, energies, shares, strict=True)
        ],
    )
    by_parts = [float(np.mean(part)) for part in (parts.training_j, parts.upload_j, parts.mining_j)]
    verdicts = [
        Verdict(
            "no client exceeds its budget in any round (C3)",
            highest <= 1.0 + 1e-9,
            f"highest share of a budget {100 * highest:.4f} %",
        ),
        Verdict(
            "clients that train come near their budget, for every budget",
            min(shares) >= 0.9,
            f"at least {100 * min(shares):.1f} % of it",
        ),
        Verdict(
            "the three parts add up to the budget in the long run",
            abs(sum(by_parts) / limit_j - 1.0) <= 0.1,
            f"{by_parts[0]:.3f} + {by_parts[1]:.3f} + {by_parts[2]:.3f} J of {limit_j:g} J",
        ),
    ]
    return finish(Target.FIG3, settings, [table], verdicts, {"fig3a": picture_a, "fig3b": picture_b})


def _budget_j(scenario: Scenario) -> float:
    budget_j = scenario.energy.budget_j
    if not isinstance(budget_j, float):
        raise BdflError(f"scenario {scenario.name}: energy.budget_j is {budget_j!r}, figure 3 needs one number")
    return budget_j


# Figure 4: cumulative delay.


def reproduce_fig4(settings: Settings) -> Reproduction:
    panels: list[Panel] = []
    rows: list[list[Cell]] = []
    verdicts: list[Verdict] = []
    for letter, data_set in zip("ab", DATA_SETS, strict=True):
        scenarios = [load_shipped(f"fig4-{data_set}-{scheduler}", settings) for scheduler in PAPER_SCHEDULERS]
        runs = play_seeds(scenarios, cumulative_delay, settings)
        curves = {scheduler: np.mean(delays, axis=0) for scheduler, delays in zip(PAPER_SCHEDULERS, runs, strict=True)}
        panels.append(
            Panel(
                f"{letter}  {DATA_SET_NAMES[data_set]}",
                [Curve(scheduler, colour_of(scheduler), curve) for scheduler, curve in curves.items()],
                marks=[
                    (len(curve), PAPER_TIME_S[data_set][scheduler], colour_of(scheduler))
                    for scheduler, curve in curves.items()
                ],
                mark_name="paper's time",
            )
        )
        others = [curve for scheduler, curve in curves.items() if scheduler != "drc"]
        lead = np.min(others, axis=0) - curves["drc"]
        rows += [
            [
                DATA_SET_NAMES[data_set],
                scheduler,
                *(float(curve[len(curve) * part // 4 - 1]) for part in (1, 2, 3, 4)),
                PAPER_TIME_S[data_set][scheduler],
            ]
            for scheduler, curve in curves.items()
        ]
        name = DATA_SET_NAMES[data_set]
        quarters = [float(lead[len(lead) * part // 4 - 1]) for part in (1, 2, 3, 4)]
        best = min(("random", "round-robin", "channel-best"), key=lambda scheduler: float(curves[scheduler][-1]))
        verdicts += [
            Verdict(
                f"{name}: drc is ahead, and ever more so",
                quarters[0] > 0 and all(early < late for early, late in pairwise(quarters)),
                f"by {', '.join(f'{lead_s:.1f}' for lead_s in quarters)} s at the quarters of the run",
            ),
            Verdict(
                f"{name}: channel-best is the fastest baseline", best == "channel-best", f"fastest baseline is {best}"
            ),
        ]
    table = NumberTable(
        "quarters",
        "Figure 4: cumulative delay (s) at the quarters of the run",
        ["data", "scheduler", "1/4", "2/4", "3/4", "end", "paper's end"],
        rows,
    )
    picture = draw_curves(panels, value_label="cumulative delay (s)", value_column="cumulative_delay_s")
    return finish(Target.FIG4, settings, [table], verdicts, {"fig4": picture})
