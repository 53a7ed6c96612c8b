"""Verification of a run's chain, for its page and the terminal."""

from xml.etree.ElementTree import Element

from bdfl.ledger.verify import Agreement, ModelCheck, Verification
from bdfl.report.findings import count
from bdfl.report.html import node, table_node


def describe_verification(verification: Verification) -> str:
    """Describe the verification of a chain in a sentence."""
    if verification.failure is not None:
        return f"The chain is not valid. {verification.failure}."
    recomputed = verification.count_models(ModelCheck.RECOMPUTED)
    pruned = verification.count_models(ModelCheck.PRUNED) + verification.count_models(ModelCheck.TRUSTED)
    models = f"{count(recomputed, 'global model')} aggregated again from the members' updates, equal in every bit"
    gone = f", {pruned} taken on the word of a quorum because their updates were pruned" if pruned else ""
    blocks, signatures = count(verification.height, "block"), count(verification.num_signatures, "signature")
    return (
        f"After the run {blocks} and {signatures} were checked from the genesis on: links, proofs of work, votes,"
        f" queues, receipts and schedules; {models}{gone}."
    )


def chain_section(verification: Verification) -> list[Element]:
    """Return the page's section about the chain."""
    rows = [
        ("Chain", verification.chain),
        ("Blocks", f"{verification.height:,}"),
        ("Signatures checked", f"{verification.num_signatures:,}"),
        ("Models aggregated again", f"{verification.count_models(ModelCheck.RECOMPUTED):,}"),
        ("Blocks that left the model as it was", f"{verification.count_models(ModelCheck.UNCHANGED):,}"),
        ("Models whose updates were pruned", f"{verification.count_models(ModelCheck.PRUNED):,}"),
        ("Schedules that come out the same here", f"{verification.count_schedules(Agreement.SAME):,}"),
        ("Schedules within the voters' tolerance", f"{verification.count_schedules(Agreement.WITHIN_TOLERANCE):,}"),
        ("Other schedules, valid all the same", f"{verification.count_schedules(Agreement.DIFFERENT):,}"),
    ]
    again = "Anybody can do it again with the run's folder alone: bdfl chain verify FOLDER."
    return [
        node("p", f"{describe_verification(verification)} {again}"),
        node("div.panel", table_node("Verification", ("", ""), rows, words=(0,))),
    ]
