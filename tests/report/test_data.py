"""The picture of who holds what: few clients as they are, many in an order, and always the numbers beside it."""

import numpy as np
import pytest

from bdfl.learning.data import make_data_set
from bdfl.learning.participation import summarise_data as draw_who
from bdfl.report.data import summarise_data, tabulate_holdings
from bdfl.report.style import save_picture
from bdfl.scenario import Scenario, override_scenario


def holdings(num_clients, *changes, num_labels=10, names=None):
    labels = np.arange(4000) % num_labels
    inputs = np.zeros((4000, 2, 2, 1), dtype=np.uint8)
    data = make_data_set("grey", inputs, labels, inputs, labels, label_names=names)
    settings = [f"clients.count={num_clients}", "clients.min_selected=1", "partition.sizes=natural", *changes]
    return draw_who(override_scenario(Scenario(), settings), data)


def texts(picture):
    return [text.get_text() for axes in picture.figure.axes for text in axes.texts]


def test_few_clients_stand_in_their_order_with_numbers_in_the_cells():
    held = holdings(8)
    picture = summarise_data(held)
    assert sorted(texts(picture)) == sorted(str(count) for count in held.label_counts.ravel() if count)
    cells = picture.figure.axes[0]
    assert (cells.images[0].get_array() == held.label_shares).all()
    assert [text.get_text() for text in cells.get_yticklabels()] == [str(client) for client in range(8)]


def test_dozens_of_clients_have_a_row_each_without_numbers():
    picture = summarise_data(holdings(30))
    assert texts(picture) == []
    assert picture.figure.axes[0].images[0].get_array().shape == (30, 10)


def test_many_clients_are_sorted_by_main_label_and_those_without_data_come_last():
    held = holdings(1000, "partition.method=quantity", "partition.size_dirichlet=0.1")
    picture = summarise_data(held)
    num_empty = int((held.samples == 0).sum())
    assert texts(picture) == [f"{num_empty} clients without data"]
    lines = picture.figure.axes[0].images[0].get_array()
    assert len(lines) == 400
    main = lines[: int(400 * (1 - num_empty / 1000)) - 2].argmax(axis=1)
    assert np.count_nonzero(np.diff(main) < 0) <= 3  # a line may mix two neighbours
    assert lines[-10:].max() == 0


@pytest.mark.usefixtures("coarse_pictures")
@pytest.mark.parametrize(("num_clients", "num_labels"), [(1, 1), (16, 17), (41, 31), (401, 16)])
def test_any_number_of_clients_and_labels_can_be_drawn(tmp_path, num_clients, num_labels):
    held = holdings(num_clients, num_labels=num_labels)
    files = save_picture(summarise_data(held), tmp_path, "who")
    assert [path.suffix for path in files] == [".svg", ".png", ".csv"]
    assert len(files[2].read_text().splitlines()) == num_clients + 1


def test_the_sheet_has_every_client_and_label_whatever_is_drawn():
    held = holdings(50, names=tuple("abcdefghij"))
    sheet = summarise_data(held).sheets[0]
    assert sheet.header == (
        "client",
        "samples",
        "divergence",
        "participation_rate",
        *(f"label_{n}" for n in "abcdefghij"),
    )
    assert [row[4:] for row in sheet.rows] == held.label_counts.tolist()
    assert [row[3] for row in sheet.rows] == held.participation_rate.tolist()


def test_a_table_names_labels_as_far_as_they_fit():
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    heading = tabulate_holdings(holdings(8, names=names))[1].columns[2].header
    assert heading.split() == [name[:4] for name in names]


def test_bars_grow_with_shares_and_only_nothing_has_none():
    table = tabulate_holdings(holdings(3, "partition.method=shards", num_labels=40))[1]
    bars = list(table.columns[2].cells)
    held = holdings(3, "partition.method=shards", num_labels=40)
    for text, shares in zip(bars, held.label_shares, strict=True):
        assert [bar == " " for bar in text.ljust(40)] == (shares == 0).tolist()
    assert "█" in "".join(bars)
