"""Mutation score of a sample, and its table by module."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from campaigns.mutation.trying import Verdict

Reasons = Mapping[tuple[str, str, str], str]


def score(verdicts: Sequence[Verdict], equivalent: Reasons) -> tuple[int, int, int]:
    """Count mutants that were caught, survived though not equivalent, and survived as equivalent."""
    caught = sum(verdict.is_caught for verdict in verdicts)
    alike = sum(not verdict.is_caught and verdict.mutant.name in equivalent for verdict in verdicts)
    return caught, len(verdicts) - caught - alike, alike


def score_line(verdicts: Sequence[Verdict], equivalent: Reasons) -> str:
    caught, survived, alike = score(verdicts, equivalent)
    judged = caught + survived
    share = 100.0 * caught / judged if judged else 0.0
    return f"{len(verdicts)} mutants: {caught} caught, {survived} survived, {alike} equivalent: {share:.1f} %"


def write_table(path: Path, verdicts: Sequence[Verdict], equivalent: Reasons, num_all: int) -> None:
    """Write a Markdown table with a row for each module and one for all."""
    lines = ["| module | mutants | caught | survived | equivalent | score |", "|---|---:|---:|---:|---:|---:|"]
    modules = sorted({verdict.mutant.module for verdict in verdicts})
    for module in [*modules, ""]:
        rows = [verdict for verdict in verdicts if module in ("", verdict.mutant.module)]
        caught, survived, alike = score(rows, equivalent)
        share = f"{100.0 * caught / (caught + survived):.1f} %" if caught + survived else ""
        name = f"`{module.removeprefix('bdfl.')}`" if module else f"all, of {num_all} there are"
        lines.append(f"| {name} | {len(rows)} | {caught} | {survived} | {alike} | {share} |")
    path.write_text("\n".join(lines) + "\n", "utf-8")
