"""Models that clients train: a perceptron, the paper's network, or a user's `torch.nn.Module`."""

from itertools import pairwise

import torch
from torch import nn

from bdfl.environment import Purpose, stream
from bdfl.learning.training import InvalidTraining
from bdfl.learning.weights import Layout
from bdfl.plugins import find_function, importing_from_here, show_exception
from bdfl.scenario import Learning
from bdfl.scenario.schema_learning import MLP, PAPER_CNN, is_function

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_KEY = "learning.model"


def build_model(choice: Learning, input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    """Build the named model for inputs of `input_shape` (channels first), with a score for each label.

    Its initial weights come from PyTorch's global generator. Raises `InvalidTraining` or `BadFunction` if the model
    does not exist or does not fit the data.
    """
    if choice.model == MLP:
        model = _build_mlp(choice.hidden, input_shape, num_labels)
    elif choice.model == PAPER_CNN:
        model = _build_paper_cnn(input_shape, num_labels)
    elif is_function(choice.model):
        model = _build_own(choice.model, input_shape, num_labels)
    else:
        raise InvalidTraining(f"{_KEY}: {choice.model!r} given, expected {MLP}, {PAPER_CNN} or module:function")
    _validate_model(model, choice.model, input_shape, num_labels)
    return model


def draw_model(choice: Learning, input_shape: tuple[int, ...], num_labels: int, seed: int) -> nn.Module:
    """Build the model with the initial weights of that seed: reproducible, and without effect on other draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, Purpose.MODEL).integers(2**63)))
        return build_model(choice, input_shape, num_labels)


def layout_of(model: nn.Module) -> Layout:
    """Layout of all floating-point entries of the model's state: parameters, and buffers such as running means.

    Integers (counters) are excluded: they cannot be averaged.
    """
    entries = {name: entry for name, entry in model.state_dict().items() if entry.is_floating_point()}
    return Layout(tuple(entries), tuple(tuple(entry.shape) for entry in entries.values()))


def suits_channels_last(model: nn.Module, input_shape: tuple[int, ...]) -> bool:
    """Return whether the model accepts images in channels-last memory order, which makes convolutions fastest.

    False for a model without convolutions, or one that uses `view`, which needs the other order.
    """
    if len(input_shape) != 3 or not any(isinstance(module, _CONVOLUTIONS) for module in model.modules()):
        return False
    inputs = torch.zeros(2, *input_shape).to(memory_format=torch.channels_last)
    try:
        _try_model(model, inputs)
    except RuntimeError:
        return False
    return True


def _build_mlp(hidden: tuple[int, ...], input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    """Dense layers with ReLU between them, over the flattened input."""
    sizes = [torch.Size(input_shape).numel(), *hidden, num_labels]
    layers: list[nn.Module] = [nn.Flatten()]
    for num_inputs, num_outputs in pairwise(sizes):
        layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _build_paper_cnn(input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    """The paper's network [Li24, Section VI-A]: 1,072,458 parameters for images of 3 x 32 x 32 and ten labels.

    Two convolutions 5 x 5 without padding, each with ReLU and pooling 3 stride 2, then dense layers of 384 and 192.
    Here ReLU comes after pooling: outputs and gradients have the same bits, at a seventh less time.
    """
    if len(input_shape) != 3:
        raise InvalidTraining(f"{_KEY}: {PAPER_CNN} needs images, inputs of shape {input_shape} given")
    channels, height, width = input_shape
    rows, columns = (_after_pooling(_after_pooling(side)) for side in (height, width))
    if min(rows, columns) < 1:
        raise InvalidTraining(f"{_KEY}: {PAPER_CNN} needs images of at least 19 x 19, {height} x {width} given")
    return nn.Sequential(
        nn.Conv2d(channels, 64, 5),
        nn.MaxPool2d(3, 2),
        nn.ReLU(),
        nn.Conv2d(64, 128, 5),
        nn.MaxPool2d(3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * rows * columns, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, num_labels),
    )


def _after_pooling(side: int) -> int:
    """Length of a side after a convolution 5 x 5 and a pooling 3 stride 2."""
    return (side - 4 - 3) // 2 + 1


def _build_own(name: str, input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    function = find_function(name)
    try:
        with importing_from_here():
            model = function(input_shape, num_labels)
    except Exception as error:  # user code may raise anything
        raise InvalidTraining(f"{_KEY}: {name!r} failed: {show_exception(error)}") from error
    if not isinstance(model, nn.Module):
        raise InvalidTraining(f"{_KEY}: {name!r} gave a {type(model).__name__}, expected a torch.nn.Module")
    return model


def _validate_model(model: nn.Module, name: str, input_shape: tuple[int, ...], num_labels: int) -> None:
    """Raise `InvalidTraining` unless the model maps inputs to scores and has trainable weights."""
    try:
        scores = _try_model(model, torch.zeros(2, *input_shape))
    except Exception as error:  # user code may raise anything
        raise InvalidTraining(
            f"{_KEY}: {name!r} fails on inputs of shape {input_shape}: {show_exception(error)}"
        ) from error
    if not isinstance(scores, torch.Tensor) or scores.shape != (2, num_labels):
        found = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise InvalidTraining(f"{_KEY}: {name!r} gave {found} for 2 inputs, expected scores of shape (2, {num_labels})")
    for entry, values in model.state_dict().items():
        if (values.is_floating_point() or values.is_complex()) and values.dtype != torch.float32:
            raise InvalidTraining(f"{_KEY}: {name!r} has {entry!r} of type {values.dtype}, expected torch.float32")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidTraining(f"{_KEY}: {name!r} has nothing to train, expected parameters with gradients")


def _try_model(model: nn.Module, inputs: torch.Tensor) -> object:
    """Output of the model for `inputs` in evaluation mode, which is reset afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(inputs)
    finally:
        model.train(was_training)
