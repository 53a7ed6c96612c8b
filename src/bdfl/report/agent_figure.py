"""Learning curve of an agent over runs, beside schedulers on the same runs."""

from collections.abc import Mapping

import numpy as np

from bdfl.records import PerRound
from bdfl.report.style import Picture, Sheet, colour_of, house_style, label_ends, new_figure

_OWN_COLOUR = 2  # place in the colour cycle for names without a colour of their own


def draw_agents(values: Mapping[str, PerRound], *, label: str) -> Picture:
    """Draw a line for every entry of `values`, which has one number per run; `label` names the quantity."""
    with house_style():
        figure = new_figure(6.4, 3.4)
        axes = figure.subplots()
        ends = []
        for name, line in values.items():
            colour = colour_of(name, _OWN_COLOUR)
            axes.plot(np.arange(1, len(line) + 1), line, color=colour)
            ends.append((float(len(line)), float(line[-1]), name, colour))
        axes.set(xlabel="run", ylabel=label)
        axes.set_xlim(1, max(2, max(map(len, values.values()))))
        label_ends(axes, ends)
    rows = [(name, run, float(value)) for name, line in values.items() for run, value in enumerate(line, start=1)]
    return Picture(figure, [Sheet(("who", "run", "value"), rows)])
