"""Page of a model: contributors, lineage, and distances to another model and to itself without a client."""

from collections.abc import Callable

from bdfl.explorer.documents import (
    Ancestor,
    LineageContribution,
    ModelComparison,
    ModelDocument,
    TensorDistance,
    WithoutDocument,
)
from bdfl.explorer.orders import Traced


def show_model(
    height: int,
    traced: Traced,
    *,
    without: int | None,
    other: int | None,
    pruned_to: int,
    accuracy_of: Callable[[int], float | None],
) -> ModelDocument:
    """Return the page; `accuracy_of` returns the accuracy of the model after a block."""
    return ModelDocument(
        height=height,
        made_in=traced.made_in,
        model=traced.model,
        rule=traced.rule,
        is_stored=traced.is_stored,
        pruned_to=pruned_to,
        is_trusted=traced.is_trusted,
        accuracy=accuracy_of(height),
        contributions=[
            LineageContribution(**{name: getattr(one, name) for name in LineageContribution.__struct_fields__})
            for one in traced.contributors
        ],
        parents=[
            Ancestor(
                height=one.height,
                digest=one.digest,
                clients=one.clients,
                is_stored=one.is_stored,
                accuracy=accuracy_of(one.height),
                distance=one.distance,
            )
            for one in traced.parents
        ],
        compare=None if other is None else _show_comparison(other, traced, accuracy_of),
        without=None if without is None else _show_without(without, traced),
        why=None if traced.is_stored else f"the model's bytes are not kept: those up to block {pruned_to} were pruned",
    )


def _show_comparison(other: int, traced: Traced, accuracy_of: Callable[[int], float | None]) -> ModelComparison | None:
    found = traced.compared
    if found is None:
        return None
    return ModelComparison(
        other=other,
        digest=found.digest,
        distance=found.distance,
        relative=found.relative,
        accuracy=accuracy_of(other),
        tensors=[
            TensorDistance(**{name: getattr(one, name) for name in TensorDistance.__struct_fields__})
            for one in found.tensors
        ],
        why=found.why,
    )


def _show_without(client: int, traced: Traced) -> WithoutDocument | None:
    found = traced.left_out
    if found is None:
        return None
    return WithoutDocument(
        client=client,
        distance=found.distance,
        relative=found.relative,
        changed_in=found.changed_in,
        why=found.why,
    )
