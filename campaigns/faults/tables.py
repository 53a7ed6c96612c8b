"""Tables of faulty networks and mutants, for a terminal of 80 columns and for the documentation."""

from collections.abc import Sequence

from rich.table import Table

from bdfl.report.tables import infeasible_text, new_table, number
from campaigns.faults.campaign import Campaign, MutantResult


def tabulate_campaign(campaign: Campaign) -> Table:
    """Tabulate the networks of each quorum rule and their breaches."""
    last = campaign.first + campaign.num_seeds - 1
    table = new_table(
        f"Faulty networks, seeds {campaign.first} to {last}",
        ("quorum", "networks", "liars", "crashes", "blocks", "recovery", "worst", "seed", "broken"),
    )
    for group in campaign.groups:
        table.add_row(
            group.quorum.value,
            str(group.networks),
            str(group.liars),
            str(group.crashes),
            str(group.blocks),
            number(group.recovery_median_s, 1, " s"),
            number(group.recovery_worst_s, 1, " s"),
            str(group.worst_seed),
            infeasible_text(group.breaches),
        )
    share = "too many" if campaign.is_share_too_large else "within chance"
    table.caption = (
        f"selfish members won {campaign.selfish_won} blocks, their share is {campaign.selfish_expected:.0f}: {share}\n"
        f"members changed {sum(group.changes for group in campaign.groups)} times\n"
        "recovery: virtual time from the end of the faults until all honest nodes are\n"
        "three rounds further, median and worst, with the seed of the worst"
    )
    return table


def tabulate_mutants(results: Sequence[MutantResult]) -> Table:
    """Tabulate the laws that noticed each mutant, and after how many seeds."""
    table = new_table(
        "Protocols with one thing wrong", ("mutant", "what is wrong", "noticed by", "seeds"), text_columns=3
    )
    for result in results:
        table.add_row(result.name, result.change, _laws(result), str(result.num_seeds))
    return table


def mutants_markdown(results: Sequence[MutantResult], first: int, num_seeds: int) -> str:
    """Format the results of mutants as a page of the documentation."""
    caught = sum(bool(result.laws) for result in results)
    lines = [
        "# Mutants: do the laws notice?",
        "",
        "Each mutant is the protocol with one thing wrong, put there while a network is played and taken away",
        "before it is judged. It is played on the faulty networks of consecutive seeds, as of",
        f"`python -m campaigns faults`, until a law is broken. {caught} of {len(results)} are noticed. Made by",
        f"`python -m campaigns faults mutants --first {first} --seeds {num_seeds} --out docs/results/faults`.",
        "",
        "| mutant | what is wrong | noticed by | seed | seeds tried |",
        "|---|---|---|---:|---:|",
    ]
    for result in results:
        seed = "" if result.seed is None else str(result.seed)
        tried = str(result.num_seeds or "")
        lines.append(f"| `{result.name}` | {result.change} | {_laws(result)} | {seed} | {tried} |")
    lines += ["", "## How it shows", "", "The first breach at that seed, in the words of the law.", ""]
    lines += [f"- `{result.name}`: {result.laws[0]}: {result.what}" for result in results if result.laws]
    return "\n".join(lines) + "\n"


def _laws(result: MutantResult) -> str:
    return ", ".join(result.laws) or f"not noticed in {result.num_seeds}"
