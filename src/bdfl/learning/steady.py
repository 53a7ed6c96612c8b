"""Deterministic PyTorch, as a context that restores all settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from bdfl.environment import Purpose, stream


@contextmanager
def steady_torch(threads: int, *, strict: bool) -> Iterator[None]:
    """Compute with `threads` threads and reproducible bits inside.

    `strict` makes PyTorch reject or replace operations that may be nondeterministic. It costs a few per cent of the
    time, and models without such operations do not need it. Threads, random generator and settings are restored
    afterwards.
    """
    former_threads = torch.get_num_threads()
    former_mode = torch.get_deterministic_debug_mode()
    deterministic: Any = torch.utils.deterministic  # its setting is a property, unknown to type checkers
    former_fill = deterministic.fill_uninitialized_memory
    try:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(
            "error" if strict else "default"
        )  # not use_deterministic_algorithms, which loads the compiler
        deterministic.fill_uninitialized_memory = False  # a debugging aid that takes time
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        deterministic.fill_uninitialized_memory = former_fill
        torch.set_deterministic_debug_mode(former_mode)
        torch.set_num_threads(former_threads)


def seed_torch(seed: int, purpose: Purpose, round: int, client: int) -> None:
    """Seed PyTorch's global generator for this purpose, round and client."""
    torch.manual_seed(int(stream(seed, purpose, round, client).integers(2**63)))
