"""Local optimizers: SGD, Adam and AdamW, clipping, the proximal term of FedProx, and the learning rate over rounds.

[Kingma15] Kingma, Ba: "Adam: A Method for Stochastic Optimization", ICLR 2015.
[Loshchilov19] Loshchilov, Hutter: "Decoupled Weight Decay Regularization", ICLR 2019.
[Li20] Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks", MLSys 2020.
"""

import math
from typing import TypeAlias

import msgspec
import torch

from bdfl.learning.training import InvalidTraining
from bdfl.scenario import Learning, Optimizer, RateSchedule

_LARGEST = float(torch.finfo(torch.float32).max)
_TINY = 1e-6  # added to a norm before clipping, as `torch.nn.utils.clip_grad_norm_` does

OptimizerSettings: TypeAlias = Learning  # with the learning rate of one round


def make_settings(choice: Learning, round: int, rounds: int) -> OptimizerSettings:
    """Return the parameters in a round of `rounds`; raise `InvalidTraining` if float32 cannot hold them."""
    for key in ("learning_rate", "weight_decay", "proximal"):
        value: float = getattr(choice, key)
        if value > _LARGEST:
            raise InvalidTraining(f"learning.{key}: {value:g} given, expected at most {_LARGEST:g}")
    return msgspec.structs.replace(choice, learning_rate=rate_in_round(choice, round, rounds))


def rate_in_round(choice: Learning, round: int, rounds: int) -> float:
    """Learning rate in a round, from 1; a cosine stays at its last value after `rounds`."""
    match choice.schedule:
        case RateSchedule.STEP:
            return choice.learning_rate * choice.schedule_factor ** ((round - 1) // choice.schedule_rounds)
        case RateSchedule.COSINE:
            done = (min(round, rounds) - 1) / rounds
            return choice.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))
        case _:
            return choice.learning_rate


class LocalOptimizer:
    """Takes steps on `tensors` in place; its state begins at zero.

    The tensors are one client's; or, `by_row`, a single one with a row for each of several clients.
    """

    def __init__(
        self,
        settings: OptimizerSettings,
        tensors: list[torch.Tensor],
        *,
        by_row: bool = False,
        is_shared: list[torch.Tensor] | None = None,
    ) -> None:
        """`is_shared` has factors of the proximal term for each tensor, 0 where it is personal; none: all 1."""
        self._settings = settings
        self._tensors = tensors
        self._by_row = by_row
        self._is_shared = is_shared
        self._num_steps = 0
        is_sgd = settings.optimizer is Optimizer.SGD
        self._first = _zeros(tensors) if not is_sgd or settings.momentum else []
        self._second = [] if is_sgd else _zeros(tensors)
        self._start = [tensor.clone() for tensor in tensors] if settings.proximal else []

    def step(self, gradients: list[torch.Tensor], is_done: torch.Tensor | None = None) -> None:
        """Take a step, overwriting `gradients`; rows that are done stay as they are."""
        settings, tensors = self._settings, self._tensors
        self._num_steps += 1
        if settings.proximal:
            distances = list(torch._foreach_sub(tensors, self._start))
            if self._is_shared is not None:
                torch._foreach_mul_(distances, self._is_shared)
            torch._foreach_add_(gradients, distances, alpha=settings.proximal)
        if settings.clip_norm is not None:
            factor = (settings.clip_norm / (self._norm(gradients) + _TINY)).clamp(max=1.0)
            for gradient in gradients:
                gradient.mul_(factor)
        if settings.weight_decay and settings.optimizer is not Optimizer.ADAMW:
            torch._foreach_add_(gradients, tensors, alpha=settings.weight_decay)
        changes = self._change(gradients)
        if is_done is not None:
            changes = [change.masked_fill(is_done, 0.0) for change in changes]
        torch._foreach_add_(tensors, changes, alpha=-settings.learning_rate)

    def _change(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        settings = self._settings
        if settings.optimizer is not Optimizer.SGD:
            return self._adam(gradients)
        if not settings.momentum:
            return gradients
        torch._foreach_mul_(self._first, settings.momentum)
        torch._foreach_add_(self._first, gradients)
        return self._first

    def _adam(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Moments without their bias towards zero [Kingma15, Algorithm 1], and the decay apart [Loshchilov19]."""
        settings = self._settings
        first, second = settings.betas
        torch._foreach_lerp_(self._first, gradients, 1.0 - first)
        torch._foreach_mul_(self._second, second)
        torch._foreach_addcmul_(self._second, gradients, gradients, value=1.0 - second)
        roots = torch._foreach_sqrt(self._second)
        torch._foreach_div_(roots, math.sqrt(1.0 - second**self._num_steps))
        torch._foreach_add_(roots, settings.adam_epsilon)
        changes = list(torch._foreach_div(self._first, roots))
        torch._foreach_div_(changes, 1.0 - first**self._num_steps)
        if settings.weight_decay and settings.optimizer is Optimizer.ADAMW:
            torch._foreach_add_(changes, self._tensors, alpha=settings.weight_decay)
        return changes

    def _norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        if self._by_row:
            norms: torch.Tensor = torch.linalg.vector_norm(gradients[0], dim=1, keepdim=True)
            return norms
        return norm_of(gradients)


def norm_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Norm of all entries of the tensors."""
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))
    return norm


def make_torch_optimizer(settings: OptimizerSettings, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return PyTorch's own optimizer with these settings, for training that wraps one."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer is Optimizer.SGD:
        return torch.optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay)
    kind = torch.optim.Adam if settings.optimizer is Optimizer.ADAM else torch.optim.AdamW
    return kind(parameters, lr=rate, betas=settings.betas, eps=settings.adam_epsilon, weight_decay=decay)


def _zeros(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(tensor) for tensor in tensors]
