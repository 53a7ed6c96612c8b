"""The model zoo: `mlp`, the paper's CNN, a residual network, and models of one's own.

[He16] He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition", CVPR 2016.
[Hsieh20] Hsieh, Phanishayee, Mutlu, Gibbons: "The Non-IID Data Quagmire of Decentralized Machine Learning", ICML 2020.
"""

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import relu

from bdfl.environment import Purpose, stream
from bdfl.learning.training import InvalidTraining
from bdfl.plugins import find_function, importing_from_here, show_exception
from bdfl.scenario import Learning
from bdfl.scenario.schema_learning import MLP, PAPER_CNN, RESNET, is_function

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
    elif choice.model == RESNET:
        model = _build_resnet(input_shape, num_labels)
    elif is_function(choice.model):
        model = _build_own(choice.model, input_shape, num_labels)
    else:
        known = f"{MLP}, {PAPER_CNN}, {RESNET}"
        raise InvalidTraining(f"{_KEY}: {choice.model!r} given, expected {known} or module:function")
    _validate_model(model, choice.model, input_shape, num_labels)
    return model


def draw_model(choice: Learning, input_shape: tuple[int, ...], num_labels: int, seed: int) -> nn.Module:
    """Build the model with the initial weights of that seed: reproducible, and without effect on other draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, Purpose.MODEL).integers(2**63)))
        return build_model(choice, input_shape, num_labels)


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
    Here ReLU comes after pooling, the second after flattening: the same bits of outputs and gradients in less time.
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
        nn.Flatten(),
        nn.ReLU(),
        nn.Linear(128 * rows * columns, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, num_labels),
    )


def _after_pooling(side: int) -> int:
    """Length of a side after a convolution 5 x 5 and a pooling 3 stride 2."""
    return (side - 4 - 3) // 2 + 1


_WIDTHS = (16, 32, 64)  # channels of the three stages
_BLOCKS = 3  # of each stage: 3 * 3 * 2 convolutions, the first one and the dense layer are 20 layers
_GROUPS = 8


def _build_resnet(input_shape: tuple[int, ...], num_labels: int) -> nn.Module:
    """ResNet-20 for small images [He16, Section 4.2], 272,474 parameters for 3 x 32 x 32 and ten labels.

    Group norm takes the place of batch norm, whose statistics suffer where clients hold different labels [Hsieh20].
    """
    if len(input_shape) != 3:
        raise InvalidTraining(f"{_KEY}: {RESNET} needs images, inputs of shape {input_shape} given")
    layers: list[nn.Module] = [_convolution(input_shape[0], _WIDTHS[0]), _norm(_WIDTHS[0]), nn.ReLU()]
    former = _WIDTHS[0]
    for width in _WIDTHS:
        for _ in range(_BLOCKS):
            layers.append(_ResidualBlock(former, width))
            former = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(former, num_labels))


class _ResidualBlock(nn.Module):
    """Two convolutions 3 x 3 beside a shortcut.

    A block wider than its input halves both sides; its shortcut takes every other pixel and has zeros for new channels.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        stride = 1 if channels == width else 2
        self.first = _convolution(channels, width, stride)
        self.first_norm = _norm(width)
        self.second = _convolution(width, width)
        self.second_norm = _norm(width)
        self._added = width - channels

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = relu(self.first_norm(self.first(inputs)))
        found: torch.Tensor = self.second_norm(self.second(hidden))
        if self._added:
            inputs = nn.functional.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, 0, self._added))
        return relu(found + inputs)


def _convolution(channels: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, width)


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
