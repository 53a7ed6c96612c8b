"""The paper's figures 2 to 4 and its Table IV: our numbers beside the paper's, with computed verdicts.

Every curve is a scenario that ships with the package. No parameter of it is changed here, except V of `exact`, which
the paper does not have. The notes of the result list the changes made by `TrainingSettings`.
"""

from bdfl.reproduce.figures import reproduce_fig2, reproduce_fig3, reproduce_fig4, reproduce_times
from bdfl.reproduce.results import (
    CampaignProgress as CampaignProgress,
    Reproduction as Reproduction,
    Settings as Settings,
    Target as Target,
    TrainingSettings as TrainingSettings,
    UnknownTarget as UnknownTarget,
    parse_targets as parse_targets,
)


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
