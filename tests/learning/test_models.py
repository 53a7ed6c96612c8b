"""Models by name, their weights and their layout."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from bdfl.learning.models import build_model, draw_model, suits_channels_last
from bdfl.learning.torch_model import FlatModel, layout_of
from bdfl.learning.training import InvalidTraining
from bdfl.plugins import BadFunction
from bdfl.scenario import Learning

OWN = """
import torch
from torch import nn

class Flattening(nn.Module):
    def __init__(self, shape, labels):
        super().__init__()
        self.first = nn.Conv2d(shape[0], 4, 3)
        self.last = nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), labels)

    def forward(self, inputs):
        return self.last(self.first(inputs).view(len(inputs), -1))

def linear(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), num_labels))

def viewing(input_shape, num_labels):
    return Flattening(input_shape, num_labels)

def lazy(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_labels))

def raising(input_shape, num_labels):
    raise RuntimeError("two\\nlines")

def nothing(input_shape, num_labels):
    return None

def narrow(input_shape, num_labels):
    return linear(input_shape, num_labels - 1)

def wide(input_shape, num_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(3, num_labels))

def double(input_shape, num_labels):
    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear(input_shape, num_labels).double()
        def forward(self, inputs):
            return self.inner(inputs.double())
    return Double()

def frozen(input_shape, num_labels):
    return linear(input_shape, num_labels).requires_grad_(False)

number = 5
"""


@pytest.fixture
def own_models(tmp_path, monkeypatch):
    (tmp_path / "own_models_of_tests.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "own_models_of_tests"


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_papers_network_has_its_number_of_parameters():
    model = build_model(Learning(model="paper-cnn"), (3, 32, 32), 10)
    assert num_parameters(model) == 1_072_458
    assert layout_of(model).num_parameters == 1_072_458
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_papers_network_computes_the_bits_of_relu_before_pooling(channels_last):
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = draw_model(Learning(model="paper-cnn"), (3, 32, 32), 10, 1).to(memory_format=form)
    printed = nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(64, 128, 5), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(2048, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    ).to(memory_format=form)  # fmt: skip
    printed.load_state_dict(model.state_dict())
    draws = torch.Generator().manual_seed(2)
    inputs = torch.randn(16, 3, 32, 32, generator=draws).to(memory_format=form)
    inputs[0] = 0.0  # ties in every window
    labels = torch.randint(0, 10, (16,), generator=draws)
    for one in (model, printed):
        nn.functional.cross_entropy(one(inputs), labels).backward()
    assert torch.equal(model(inputs), printed(inputs))
    for ours, theirs in zip(model.parameters(), printed.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("shape", [(1, 19, 19), (1, 19, 40), (3, 33, 21)])
def test_the_papers_network_takes_other_images(shape):
    assert build_model(Learning(model="paper-cnn"), shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 18, 32), "paper-cnn needs images of at least 19 x 19, 18 x 32 given"),
        ((1, 8, 8), "paper-cnn needs images of at least 19 x 19, 8 x 8 given"),
        ((64,), r"paper-cnn needs images, inputs of shape \(64,\) given"),
    ],
)
def test_the_papers_network_says_what_it_cannot_take(shape, message):
    with pytest.raises(InvalidTraining, match=f"^learning.model: {message}$"):
        build_model(Learning(model="paper-cnn"), shape, 10)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
def test_a_perceptron_has_the_layers_asked_for(hidden):
    model = build_model(Learning(hidden=hidden), (2, 3), 4)
    sizes = [6, *hidden, 4]
    assert num_parameters(model) == sum((a + 1) * b for a, b in pairwise(sizes))
    assert sum(isinstance(layer, nn.ReLU) for layer in model) == len(hidden)
    assert isinstance(model[-1], nn.Linear)


def test_an_unknown_model_is_refused():
    with pytest.raises(InvalidTraining, match="'resnet' given, expected mlp, paper-cnn, resnet-20 or module:function"):
        build_model(Learning(model="resnet"), (3, 32, 32), 10)


@pytest.mark.parametrize("name", ["linear", "lazy", "viewing"])
def test_an_own_model_is_found_in_the_working_folder(own_models, name):
    model = build_model(Learning(model=f"{own_models}:{name}"), (3, 5, 5), 4)
    assert model(torch.zeros(2, 3, 5, 5)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raising", "failed: RuntimeError: two lines$"),
        ("nothing", "gave a NoneType, expected a torch.nn.Module$"),
        ("narrow", r"gave shape \(2, 3\) for 2 inputs, expected scores of shape \(2, 4\)$"),
        ("wide", r"fails on inputs of shape \(3, 5, 5\): RuntimeError: "),
        ("double", "has 'inner.1.weight' of type torch.float64, expected torch.float32$"),
        ("frozen", "has nothing to train, expected parameters with gradients$"),
    ],
)
def test_an_own_model_that_does_not_fit_is_refused_in_one_line(own_models, name, message):
    with pytest.raises(InvalidTraining, match=message) as caught:
        build_model(Learning(model=f"{own_models}:{name}"), (3, 5, 5), 4)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"learning.model: '{own_models}:{name}'")


@pytest.mark.parametrize("name", ["missing", "number"])
def test_an_own_model_that_is_no_function_is_refused(own_models, name):
    with pytest.raises(BadFunction):
        build_model(Learning(model=f"{own_models}:{name}"), (3, 5, 5), 4)


def test_initial_weights_belong_to_the_seed_and_disturb_no_other_draw():
    def draw(seed):
        return FlatModel(draw_model(Learning(), (6,), 4, seed), channels_last=False).read()

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw(1)
    assert (torch.get_rng_state() == before).all()
    torch.manual_seed(2)
    assert draw(1).tobytes() == first.tobytes()
    assert draw(2).tobytes() != first.tobytes()


def test_convolutions_get_channels_last_unless_they_cannot(own_models):
    def suits(name, shape):
        return suits_channels_last(build_model(Learning(model=name), shape, 4), shape)

    assert suits("paper-cnn", (3, 20, 20))
    assert not suits("mlp", (3, 20, 20))
    assert not suits(f"{own_models}:viewing", (3, 20, 20))


@pytest.fixture
def batch_norm():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))


def test_the_layout_has_all_floats_of_the_state_in_order(batch_norm):
    layout = layout_of(batch_norm)
    assert layout.names == (
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "3.weight", "3.bias",
    )  # fmt: skip
    assert layout.num_parameters == 54 + 3 + 3 + 3 + 3 + 3 + 48 + 4


@pytest.fixture(params=["small", "large"])
def size(request, monkeypatch):
    """Any model counts as small, with its gradients in one tensor, or as large."""
    monkeypatch.setattr("bdfl.learning.torch_model._GATHERED_ENTRIES", 2**30 if request.param == "small" else 0)
    return request.param


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_flat_model_computes_and_reads_as_before(batch_norm, channels_last, size):
    inputs = torch.randn(5, 2, 4, 4)
    batch_norm.eval()
    scores = batch_norm(inputs)
    scores.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in batch_norm.parameters()]
    state = {name: value.clone() for name, value in batch_norm.state_dict().items()}
    model = FlatModel(batch_norm, channels_last=channels_last)
    assert torch.allclose(model.module(inputs), scores, atol=1e-6)
    parts = dict(model.layout.split(model.read()))
    assert all((parts[name] == state[name].numpy()).all() for name in parts)
    model.forget_gradient()
    model.module(inputs).square().sum().backward()
    found = dict(model.layout.split(model.read_gradient().astype(np.float32)))
    for (name, _), gradient in zip(model.module.named_parameters(), gradients, strict=True):
        assert found[name] == pytest.approx(gradient.numpy(), abs=1e-4)
    assert (found["1.running_mean"] == 0).all()


def test_tensors_reach_all_parameters_and_gradients(batch_norm, size):
    model = FlatModel(batch_norm, channels_last=True)
    model.module(torch.randn(5, 2, 4, 4)).square().sum().backward()
    norm = torch.linalg.vector_norm(torch.cat([item.grad.reshape(-1) for item in model.module.parameters()]))
    gradients = model.gradients()
    assert (len(model.tensors) == len(gradients) == 1) == (size == "small")
    found = math.hypot(*(float(torch.linalg.vector_norm(gradient)) for gradient in gradients))
    assert found == pytest.approx(float(norm), rel=1e-6)
    for tensor in model.tensors:
        tensor.zero_()
    assert all((item == 0).all() for item in model.module.parameters())


def test_loading_puts_weights_in_and_lets_counters_start_anew(batch_norm):
    model = FlatModel(batch_norm, channels_last=True)
    weights = np.arange(model.layout.num_parameters, dtype=np.float32)
    weights.flags.writeable = False
    model.module.train()(torch.randn(5, 2, 4, 4))
    assert model.module[1].num_batches_tracked == 1
    model.load(weights)
    assert model.read().tobytes() == weights.tobytes()
    assert model.module[1].num_batches_tracked == 0


def test_tied_weights_stay_tied():
    first = nn.Linear(4, 4)
    second = nn.Linear(4, 4)
    second.weight = first.weight
    model = FlatModel(nn.Sequential(first, second), channels_last=False)
    assert model.module[0].weight.data_ptr() == model.module[1].weight.data_ptr()
    assert model.layout.num_parameters == 2 * 16 + 2 * 4
    weights = model.read()
    model.load(weights)
    assert model.read().tobytes() == weights.tobytes()
