"""Processes that begin with PyTorch imported: for tests of what several processes compute, not of how they start."""

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

import pytest

_IMPORTED = ["bdfl.experiment.robustness", "bdfl.learning.trainer", "sklearn.datasets"]


def prepared_context() -> ForkServerContext:
    """Makes processes that share nothing with this one, as spawned ones do, from one that has imported what is dear."""
    context = get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def use_prepared_processes(patch: pytest.MonkeyPatch) -> None:
    """Pools opened from now on have such processes."""
    patch.setattr("multiprocessing.get_context", lambda _: prepared_context())
