"""The paper's figures 2 to 4 and its Table IV: our numbers beside the paper's, with computed verdicts.

Every curve is a scenario that ships with the package. No parameter of it is changed here, except V of `exact`, which
the paper does not have. The notes of the result list the changes made by `TrainingSettings`.
"""

from bdfl.reproduce.figures import (
    DRAWN_EXACT,
    EXACT_ABOVE_BOUND_PERCENT,
    EXACT_REDUCTION_PERCENT,
    EXACT_SHORTFALL,
    EXACT_TRADEOFFS,
    REDUCTION_TOLERANCE_POINTS,
    SETTLED_SHARE,
    TIME_TOLERANCE_PERCENT,
    reproduce_fig2,
    reproduce_fig3,
    reproduce_fig4,
    reproduce_times,
)
from bdfl.reproduce.results import (
    DATA_SET_NAMES,
    DATA_SETS,
    PAPER_ACCURACY_PERCENT,
    PAPER_REDUCTION_PERCENT,
    PAPER_TIME_S,
    CampaignProgress,
    Cell,
    NumberTable,
    Reproduction,
    Settings,
    Target,
    TrainingSettings,
    UnknownTarget,
    Verdict,
    parse_targets,
)

__all__ = [
    "DATA_SETS",
    "DATA_SET_NAMES",
    "DRAWN_EXACT",
    "EXACT_ABOVE_BOUND_PERCENT",
    "EXACT_REDUCTION_PERCENT",
    "EXACT_SHORTFALL",
    "EXACT_TRADEOFFS",
    "PAPER_ACCURACY_PERCENT",
    "PAPER_REDUCTION_PERCENT",
    "PAPER_TIME_S",
    "REDUCTION_TOLERANCE_POINTS",
    "SETTLED_SHARE",
    "TIME_TOLERANCE_PERCENT",
    "CampaignProgress",
    "Cell",
    "NumberTable",
    "Reproduction",
    "Settings",
    "Target",
    "TrainingSettings",
    "UnknownTarget",
    "Verdict",
    "parse_targets",
    "reproduce",
]


def reproduce(target: Target, settings: Settings) -> Reproduction:
    """Compute, draw, write and judge one figure or table of the paper."""
    match target:
        case Target.FIG2:
            return reproduce_fig2(settings)
        case Target.FIG3:
            return reproduce_fig3(settings)
        case Target.FIG4:
            return reproduce_fig4(settings)
        case Target.TABLE4:
            if settings.training is None:
                return reproduce_times(settings)
            from bdfl.reproduce.accuracy import reproduce_accuracies  # here: it needs the extra `learn`

            return reproduce_accuracies(settings, settings.training)
