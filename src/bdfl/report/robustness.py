"""Aggregation rules against poisoning attacks: final accuracies as a heat map, tables and CSV."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.patches import Rectangle
from rich.table import Table
from rich.text import Text

from bdfl.experiment.robustness import (
    BORNE_POINTS,
    CLEAN,
    VISIBLE_POINTS,
    Attack,
    PoisonedCell,
    Poisoning,
    PoisoningVerdict,
    RuleChoice,
    show_attack,
)
from bdfl.report.style import INK, SOFT_INK, Cell, Picture, Sheet, drawable, drawing
from bdfl.report.tables import interval, markdown_table, new_table, tabulate_verdicts
from bdfl.scenario import PartitionMethod

_SHADES = LinearSegmentedColormap.from_list(  # monotonic brightness: readable with any colour vision and in grey
    "below-clean", ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
)
_DARK = 0.5  # brightness below which a shade has white text
_SCALE_LEAST = 10.0  # points: small differences stay pale
_GAP = 0.035  # around a cell, of its width
_PANEL_GAP = 0.04  # between maps, of their width
_WIDE_GAP = 0.07  # between the clean runs and the attacks, and between the mean and robust rules


def draw_poisoning(found: Poisoning) -> Picture:
    """Draw a heat map for every partition of the data: rules as rows, attacks as columns, final accuracies as cells."""
    scale = Normalize(0.0, max(_SCALE_LEAST, *(cell.below_clean.mean for cell in found.cells)))
    width = 2.0 + len(found.partitions) * 0.66 * len(found.attacks)
    with drawing(width, 1.35 + 0.46 * len(found.rules)) as figure:
        grid = figure.subplots(1, len(found.partitions), squeeze=False, gridspec_kw={"wspace": _PANEL_GAP})[0]
        for axes, partition in zip(grid, found.partitions, strict=True):
            _draw_map(axes, found, partition, scale)
            axes.set_title(name_partition(found, partition))
        grid[0].set_yticks(range(len(found.rules)), [_rule_label(rule) for rule in found.rules])
        bar = figure.colorbar(ScalarMappable(scale, _SHADES), ax=list(grid), pad=0.015, fraction=0.03, aspect=22)
        bar.set_label("points below the clean run", fontsize=8.0)
        bar.outline.set_visible(False)
        figure.supxlabel(_reading_text(found), fontsize=8.0, color=SOFT_INK, x=0.01, ha="left")
    return Picture(figure, [_cells_sheet(found), _runs_sheet(found)])


def _draw_map(axes: Axes, found: Poisoning, partition: PartitionMethod, scale: Normalize) -> None:
    for row, rule in enumerate(found.rules):
        for column, attack in enumerate(found.attacks):
            cell = found.find_cell(partition, attack, rule)
            _draw_cell(axes, cell, column - 0.5, row - 0.5, _SHADES(scale(cell.below_clean.mean)))
    axes.set_xlim(-0.5, len(found.attacks) - 0.5)
    axes.set_ylim(len(found.rules) - 0.5, -0.5)
    axes.set_xticks(range(len(found.attacks)), [_attack_label(attack) for attack in found.attacks])
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _draw_cell(axes: Axes, cell: PoisonedCell, left: float, top: float, shade: tuple[float, ...]) -> None:
    """Draw one rule against one attack; wider gaps separate the clean runs (first column) and the mean (first row)."""
    width = 1.0 - 2 * _GAP - (_WIDE_GAP if cell.attack == CLEAN else 0.0)
    height = 1.0 - 2 * _GAP - (_WIDE_GAP if top < 0 else 0.0)
    frame_width = 1.1 if cell.is_borne else 0.0
    corner = (left + _GAP, top + _GAP)
    axes.add_patch(Rectangle(corner, width, height, facecolor=shade, edgecolor=INK, linewidth=frame_width))
    ink = "white" if _brightness(shade) < _DARK else INK
    weight = "bold" if cell.is_borne else "normal"
    spread = f"{cell.least_percent:.0f} to {cell.greatest_percent:.0f}"
    for text, size, font_weight, above in (
        (f"{cell.final_percent.mean:.1f}", 9.0, weight, 4.5),
        (spread, 6.5, "normal", -6.5),
    ):
        axes.annotate(
            text,
            (corner[0] + width / 2, corner[1] + height / 2),
            xytext=(0, above),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=size,
            fontweight=font_weight,
            color=ink,
        )


def _brightness(shade: tuple[float, ...]) -> float:
    """Return the brightness of a colour, 0 to 1, by the luma weights of red, green and blue."""
    red, green, blue = shade[:3]
    return 0.299 * red + 0.587 * green + 0.114 * blue


def tabulate_poisoning(found: Poisoning) -> list[Table]:
    """Tabulate final accuracies for every partition of the data, then the verdicts."""
    claims = [
        (
            f"{name_partition(found, verdict.partition, short=True)}: {show_attack(verdict.attack)} is borne",
            verdict.is_borne,
            _verdict_text(verdict),
        )
        for verdict in found.verdicts
    ]
    return [*(_tabulate_map(found, partition) for partition in found.partitions), tabulate_verdicts(claims)]


def _tabulate_map(found: Poisoning, partition: PartitionMethod) -> Table:
    rows: list[list[str | Text]] = []
    for rule in found.rules:
        cells = [found.find_cell(partition, attack, rule) for attack in found.attacks]
        styles = ["bold" if cell.is_borne else "red" for cell in cells]
        texts = (Text(f"{cell.final_percent.mean:.1f}", style) for cell, style in zip(cells, styles, strict=True))
        rows.append([_rule_label(rule, " "), *texts])
    return new_table(
        f"{name_partition(found, partition)}: final accuracy (%), mean of {len(found.seeds)} seeds",
        ("rule", *(_attack_label(attack) for attack in found.attacks)),
        rows,
        caption=f"bold: within {BORNE_POINTS:g} points of the clean run, the mean without an attack",
    )


def write_poisoning_markdown(found: Poisoning, made_with: Sequence[str]) -> str:
    """Return the tables as Markdown; `made_with` are lines about their provenance, such as the command and versions."""
    lines = ["# Rules against attacks", "", "Written by the command below.", ""]
    lines += [f"- {line}" for line in (*made_with, *_settings_lines(found))]
    for partition in found.partitions:
        lines += ["", f"## {name_partition(found, partition)}", ""]
        lines += ["Final accuracy (%), mean ± 95 % interval over seeds; in brackets points below.", ""]
        columns = ["rule", *(_attack_label(attack, " ") for attack in found.attacks)]
        rows = [
            [_rule_label(rule, " "), *(_markdown_cell(found.find_cell(partition, one, rule)) for one in found.attacks)]
            for rule in found.rules
        ]
        lines += markdown_table(columns, rows, "l" + "r" * len(found.attacks))
    lines += ["", "## What follows", ""]
    columns = ["data", "attack", "mean: points below", "best robust rule", "points below", "verdict"]
    rows = [
        [
            name_partition(found, verdict.partition, short=True),
            show_attack(verdict.attack),
            f"{verdict.mean_below:.1f}",
            verdict.best_rule or "-",
            "-" if verdict.best_below is None else f"{verdict.best_below:.1f}",
            ("borne" if verdict.is_borne else "not borne") + (", mean fails" if verdict.mean_fails else ", mean holds"),
        ]
        for verdict in found.verdicts
    ]
    lines += markdown_table(columns, rows, "llrlrl")
    return "\n".join(lines) + "\n"


def name_partition(found: Poisoning, partition: PartitionMethod, *, short: bool = False) -> str:
    """Describe the partition of the data."""
    if partition is PartitionMethod.IID:
        return "IID" if short else "Data dealt evenly (IID)"
    return "non-IID" if short else f"Labels skewed (Dirichlet {found.dirichlet:g})"


def _settings_lines(found: Poisoning) -> list[str]:
    members = ", ".join(map(str, found.members))
    return [
        f"scenario `{found.scenario}`: {found.num_clients} clients, {len(found.members)} of them misbehave ({members}),"
        f" {found.rounds} rounds, seeds {found.seeds[0]} to {found.seeds[-1]}",
        "points below: below the clean run, which is the mean without an attack on the same seed; borne:"
        f" at most {BORNE_POINTS:g}, as in bold; the mean fails: {VISIBLE_POINTS:g} or more",
        "s: strength of an attack; f: how many wrong updates a rule is told to bear",
    ]


def _reading_text(found: Poisoning) -> str:
    seeds = f"mean of {len(found.seeds)} seeds, least to greatest below it" if len(found.seeds) > 1 else "one seed"
    return (
        f"Final test accuracy (%): {seeds}. {len(found.members)} of {found.num_clients} clients attack. Framed: within"
        f" {BORNE_POINTS:g} points of the clean run. f: wrong updates the rule is told to bear."
    )


def _verdict_text(verdict: PoisoningVerdict) -> str:
    mean = f"mean {verdict.mean_below:.1f} below"
    if verdict.best_rule is None or verdict.best_below is None:
        return mean
    return f"{mean}, {verdict.best_rule} {verdict.best_below:.1f}"


def _attack_label(attack: Attack, between: str = "\n") -> str:
    """Return the column header of an attack: its name and strength."""
    if attack == CLEAN:
        return f"no{between}attack"
    name = attack.kind.value
    return name if attack.strength is None else f"{name}{between}s = {attack.strength:g}"


def _rule_label(rule: RuleChoice, between: str = "\n") -> str:
    name = drawable(rule.name, otherwise="own rule", longest=24)
    return f"{name}{between}(f = {rule.faulty})" if rule.faulty else name


def _markdown_cell(cell: PoisonedCell) -> str:
    shown = interval(cell.final_percent, 1)
    below = f"({cell.below_clean.mean:.1f})"
    return f"**{shown}** {below}" if cell.is_borne else f"{shown} {below}"


def _cells_sheet(found: Poisoning) -> Sheet:
    header = (
        *("partition", "attack", "rule", "faulty", "seeds", "final_percent", "interval", "least", "greatest"),
        *("below_clean", "most_below_clean", "borne"),
    )
    rows: list[list[Cell]] = [
        [
            *(cell.partition.value, show_attack(cell.attack), cell.rule.name, cell.rule.faulty, len(found.seeds)),
            *(cell.final_percent.mean, cell.final_percent.half_width, cell.least_percent, cell.greatest_percent),
            *(cell.below_clean.mean, cell.most_below_clean, "yes" if cell.is_borne else "no"),
        ]
        for cell in found.cells
    ]
    return Sheet(header, rows)


def _runs_sheet(found: Poisoning) -> Sheet:
    rows: list[list[Cell]] = [
        [run.partition.value, show_attack(run.attack), run.rule.name, run.rule.faulty, run.seed, 100 * run.accuracy[-1]]
        for run in found.runs
    ]
    return Sheet(("partition", "attack", "rule", "faulty", "seed", "final_percent"), rows, "runs")
