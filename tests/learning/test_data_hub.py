"""Data of the hub, with a library that only pretends to download."""

import io
import sys
from types import ModuleType

import numpy as np
import pytest
from PIL import Image as PillowImage

from bdfl.errors import MissingExtra
from bdfl.learning.data import BadData, load_data
from bdfl.scenario import DataChoice

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 3, 3, 3), dtype=np.uint8)


def encode(pixels):
    file = io.BytesIO()
    PillowImage.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


class Image:
    """The feature of a column of images."""

    def __init__(self, decode=True):
        self.decode = decode


class ClassLabel:
    def __init__(self, names):
        self.names = names


class Split:
    """As much of a split as is used."""

    def __init__(self, columns, features, fingerprint):
        self.columns, self.features, self._fingerprint = columns, features, fingerprint

    @property
    def column_names(self):
        return list(self.columns)

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}

    def cast_column(self, name, feature):
        assert not feature.decode
        return Split(self.columns, self.features | {name: feature}, self._fingerprint + "-cast")


def split(images, labels, feature=None, fingerprint="f"):
    columns = {"img": [{"bytes": encode(pixels), "path": None} for pixels in images], "label": labels}
    return Split(columns, {"img": feature or Image(), "label": ClassLabel(["cat", "dog"])}, fingerprint)


@pytest.fixture
def hub(monkeypatch):
    """What the pretended library answers with, by (name, configuration)."""
    found = {("animals", None): {"train": split(PIXELS[:6], [0, 1] * 3), "test": split(PIXELS[6:], [0, 1, 1])}}
    module = ModuleType("datasets")
    module.Image = Image

    def load_dataset(name, configuration):
        if (name, configuration) not in found:
            raise ConnectionError("no network,\nno data")
        return found[name, configuration]

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return found


@pytest.fixture
def load(tmp_path):
    return lambda source, **settings: load_data(DataChoice(source=source, **settings), cache=tmp_path / "cache")


def test_a_name_of_the_hub_is_loaded_and_kept(hub, load, monkeypatch):
    data = load("hub:animals")
    assert (data.train_inputs == PIXELS[:6]).all()
    assert (data.test_inputs == PIXELS[6:]).all()
    assert data.test_labels.tolist() == [0, 1, 1]
    assert (data.name, data.label_names) == ("hub:animals", ("cat", "dog"))
    monkeypatch.setattr("bdfl.learning.image_files.decode_images", None)
    assert load("hub:animals").digest == data.digest


def test_a_configuration_follows_a_colon_and_other_content_is_loaded_anew(hub, load):
    other = split(PIXELS[::-1], [1, 0] * 4 + [0], fingerprint="g")
    hub["animals", "turned"] = {"train": other, "test": other}
    assert load("hub:animals").digest != load("hub:animals:turned").digest


def test_images_in_files_of_their_own_are_read(hub, load, tmp_path):
    (tmp_path / "one.png").write_bytes(encode(PIXELS[0]))
    hub["animals", None]["test"].columns["img"][0] = {"bytes": None, "path": str(tmp_path / "one.png")}
    assert (load("hub:animals").test_inputs[0] == PIXELS[0]).all()


@pytest.mark.parametrize(
    ("break_it", "line"),
    [
        (
            lambda hub: hub.clear(),
            "ConnectionError: no network, no data, expected a data set of the hub as NAME or NAME",
        ),
        (lambda hub: hub["animals", None].pop("test"), "splits train, expected train and test"),
        (lambda hub: hub["animals", None]["train"].columns.pop("img"), "columns label, expected img, image, input or"),
        (lambda hub: hub["animals", None]["train"].columns.pop("label"), "columns img, expected label, labels or"),
        (
            lambda hub: hub["animals", None].update(test=split(PIXELS[6:], [0, 1, 1], ClassLabel([]))),
            "img of type ClassLabel, expected images",
        ),
        (lambda hub: hub["animals", None]["test"].columns.pop("img"), "hub:animals test: columns label, expected img"),
        (lambda hub: hub["animals", None].update(test=split([], [])), "no rows, expected at least one image"),
        (lambda hub: hub["animals", None].update(test=split(PIXELS[6:], [0, None, 1])), "rows without label"),
        (lambda hub: hub["animals", None].update(test=split(PIXELS[6:], [0, 2, 1])), "label 2 of sample 1, expected 0"),
        (
            lambda hub: hub["animals", None]["test"].columns["img"].__setitem__(1, {"bytes": None, "path": "/nowhere"}),
            "image 1: no bytes, expected an encoded image",
        ),
    ],
)
def test_what_the_hub_cannot_give_is_one_line(hub, load, break_it, line):
    break_it(hub)
    with pytest.raises(BadData) as caught:
        load("hub:animals")
    assert line in str(caught.value)
    assert "hub:animals" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_library_the_command_that_installs_it_is_said(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"hub:x needs datasets: pip install .*\[data\]"):
        load("hub:x")
