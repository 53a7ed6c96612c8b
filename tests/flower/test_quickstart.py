"""Flower's own quick start as it comes: clients, models and data loading learn without a server, no line changed.

Its files are taken from Flower's wheel (later ones fetch them from a hub). What the machine has none of is put in its
place: a few pictures where CIFAR-10 would be, and the three transforms that it takes from torchvision.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from string import Template
from zipfile import ZipFile

import datasets
import numpy as np
import pytest
from PIL import Image

RELEASE = "1.22.0"  # the last with the quick starts inside
TEMPLATES = "flwr/cli/new/templates/app/code"
FORMS = {"messages": "pytorch", "client_fn": "pytorch_legacy_api"}
NUM_CLIENTS, IMAGES_EACH, LABELS = 4, 50, 10
CLIENT = [
    "--flower",
    "quickstart.client_app:app",
    "--flower-model",
    "quickstart.task:Net",
    "--set",
    "learning.flower_config={local-epochs = 2, lr = 0.01}",
]
TRANSFORMS = """
import numpy as np
import torch

class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image

class ToTensor:
    def __call__(self, image):
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1) / np.float32(255))

class Normalize:
    def __init__(self, mean, deviation):
        self.mean, self.deviation = (torch.tensor(one).view(-1, 1, 1) for one in (mean, deviation))

    def __call__(self, image):
        return (image - self.mean) / self.deviation
"""


@pytest.fixture(scope="module")
def wheel(request) -> Path:
    """Flower's wheel, fetched once."""
    folder = request.config.cache.mkdir(f"flwr-{RELEASE}")
    if not list(folder.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder)]
        done = subprocess.run([*command, f"flwr=={RELEASE}"], capture_output=True, text=True)
        if done.returncode and "CI" not in os.environ:
            pytest.skip(f"flwr {RELEASE} cannot be fetched here")
        assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def write_pictures(folder: Path) -> None:
    """CIFAR-10 as the hub has it, of few pictures: each label is a colour."""
    draw = np.random.default_rng(0)
    labels = np.arange(NUM_CLIENTS * IMAGES_EACH) % LABELS
    colours = draw.integers(0, 200, (LABELS, 1, 1, 3))
    pixels = colours[labels] + draw.integers(0, 56, (len(labels), 32, 32, 3))
    images = [Image.fromarray(one) for one in pixels.astype(np.uint8)]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=LABELS)})
    found = datasets.Dataset.from_dict({"img": images, "label": labels}, features=features)
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        found.to_parquet(folder / f"{split}-00000-of-00001.parquet")


@pytest.fixture(params=FORMS)
def project(request, wheel, tmp_path) -> Path:
    """A folder with one of the quick starts in it."""
    (tmp_path / "quickstart").mkdir()
    parts = {"project_name": "quickstart", "import_name": "quickstart", "framework_str": "PyTorch"}
    with ZipFile(wheel) as archive:
        for target, source in (("client_app", "client"), ("task", "task")):
            text = archive.read(f"{TEMPLATES}/{source}.{FORMS[request.param]}.py.tpl").decode()
            (tmp_path / "quickstart" / f"{target}.py").write_text(Template(text).substitute(parts))
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "transforms.py").write_text(TRANSFORMS)
    write_pictures(tmp_path / "uoft-cs" / "cifar10" / "data")
    return tmp_path


def bdfl(folder: Path, *arguments: str) -> dict[str, object]:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bdfl.cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | offline,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_flowers_quick_start_learns_in_a_run(project):
    clients = ["--set", f"clients.count={NUM_CLIENTS}", "--set", "clients.min_selected=2"]
    found = bdfl(project, "run", "quickstart", "--rounds", "3", *CLIENT, *clients)
    assert found["chain"]["is_valid"]
    assert found["final_accuracy"] > 2 / LABELS


@pytest.mark.parametrize("project", ["messages"], indirect=True)
def test_flowers_quick_start_learns_in_a_live_network(project):
    chosen = ["--nodes", str(NUM_CLIENTS), "--blocks", "3", "--time-scale", "0", "--out", "net", "--plain"]
    found = bdfl(project, "network", "up", *chosen, *CLIENT)
    assert (found["num_nodes"], found["height"], found["failures"]) == (NUM_CLIENTS, 3, [])
    assert found["mean_updates"] >= 1
    assert found["loss"] < 2.2  # untrained: 2.3
