"""Local optimizers, judged by PyTorch's own; the learning rate over rounds, by closed forms."""

from itertools import pairwise

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from bdfl.learning.optimizers import LocalOptimizer, make_settings, make_torch_optimizer, rate_in_round
from bdfl.learning.training import InvalidTraining
from bdfl.scenario import Learning, Optimizer, RateSchedule

CHOICES = [
    Learning(learning_rate=0.1),
    Learning(learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    Learning(learning_rate=0.1, optimizer=Optimizer.ADAM, betas=(0.8, 0.95), adam_epsilon=1e-4, weight_decay=0.1),
    Learning(learning_rate=0.1, optimizer=Optimizer.ADAMW, weight_decay=0.1),
    Learning(learning_rate=0.1, optimizer=Optimizer.ADAMW, betas=(0.0, 0.5)),
]
SHAPES = [(3, 4), (7,)]
STEPS = 6


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def take_steps(settings, tensors, gradients):
    optimizer = LocalOptimizer(settings, tensors)
    for of_step in gradients:
        optimizer.step([gradient.clone() for gradient in of_step])
    return tensors


@pytest.mark.parametrize("clip_norm", [None, 0.5, 1e3])
@pytest.mark.parametrize("choice", CHOICES)
def test_steps_are_those_of_pytorch(choice, clip_norm):
    settings = replace(make_settings(choice, 1, 1), clip_norm=clip_norm)
    parameters = [nn.Parameter(tensor) for tensor in draw(0)]
    theirs = make_torch_optimizer(settings, parameters)
    gradients = [draw(seed) for seed in range(1, STEPS)]
    for of_step in gradients:
        for parameter, gradient in zip(parameters, of_step, strict=True):
            parameter.grad = gradient.clone()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        theirs.step()
    for ours, parameter in zip(take_steps(settings, draw(0), gradients), parameters, strict=True):
        torch.testing.assert_close(ours, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_the_proximal_term_is_the_gradient_of_the_squared_distance():
    settings = make_settings(Learning(learning_rate=0.1, proximal=0.7), 1, 1)
    parameters = [nn.Parameter(tensor) for tensor in draw(0)]
    gradients = [draw(seed) for seed in range(1, STEPS)]
    for of_step in gradients:
        distance = sum((own - first).square().sum() for own, first in zip(parameters, draw(0), strict=True))
        (0.5 * 0.7 * distance).backward()
        with torch.no_grad():
            for parameter, gradient in zip(parameters, of_step, strict=True):
                parameter.sub_(0.1 * (parameter.grad + gradient))
                parameter.grad = None
    for ours, parameter in zip(take_steps(settings, draw(0), gradients), parameters, strict=True):
        torch.testing.assert_close(ours, parameter.detach())


@pytest.mark.parametrize("choice", CHOICES)
def test_rows_take_the_steps_of_single_clients_and_stop_when_done(choice):
    settings = replace(make_settings(choice, 1, 1), clip_norm=1.0, proximal=0.3)
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(9))
    gradients = [torch.randn(3, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(STEPS)]
    ends = torch.tensor([STEPS, 2, 4])
    expected = [
        take_steps(settings, [rows[row].clone()], [[step[row]] for step in gradients[:end]])[0]
        for row, end in enumerate(ends.tolist())
    ]
    optimizer = LocalOptimizer(settings, [rows], by_row=True)
    for number, step in enumerate(gradients):
        optimizer.step([step.clone()], (ends <= number)[:, None])
    torch.testing.assert_close(rows, torch.stack(expected))


def test_the_rate_is_constant_falls_by_steps_or_by_a_cosine():
    rounds = range(1, 101)
    assert {rate_in_round(Learning(learning_rate=0.2), round, 100) for round in rounds} == {0.2}

    step = Learning(learning_rate=0.2, schedule=RateSchedule.STEP, schedule_rounds=40, schedule_factor=0.5)
    assert [rate_in_round(step, round, 100) for round in (1, 40, 41, 80, 81)] == [0.2, 0.2, 0.1, 0.1, 0.05]

    cosine = Learning(learning_rate=0.2, schedule=RateSchedule.COSINE)
    rates = [rate_in_round(cosine, round, 100) for round in rounds]
    assert rates[0] == 0.2
    assert rates[50] == pytest.approx(0.1)
    assert sum(rates) == pytest.approx(0.2 * (100 + 1) / 2)
    assert all(later < former for former, later in pairwise(rates))
    assert rate_in_round(cosine, 120, 100) == rates[-1] > 0


@pytest.mark.parametrize("key", ["learning_rate", "weight_decay", "proximal", "adam_epsilon"])
def test_what_float32_cannot_hold_is_refused(key):
    with pytest.raises(InvalidTraining, match=f"^learning.{key}: 1e\\+39 given, expected at most"):
        make_settings(Learning(**{key: 1e39}), 1, 1)
