"""Style: labels keep their distance, files never differ."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.report.figures import Curve, Panel, draw_curves
from bdfl.report.style import COLOURS, Sheet, colour_of, save_picture, save_sheet, spread


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_labels_are_apart_in_order_and_inside(heights):
    placed = spread(heights, 0.05)
    order = np.argsort(heights, kind="stable")
    gaps = np.diff(np.array(placed)[order])
    assert np.all(gaps >= 0.05 - 1e-9)
    assert min(placed) >= -1e-9
    assert max(placed) <= 1 + 1e-9


def test_labels_that_do_not_touch_stay_where_they_are():
    assert spread([0.9, 0.1, 0.5], 0.05) == pytest.approx([0.9, 0.1, 0.5])


def test_a_scheduler_has_the_same_colour_at_any_v():
    assert colour_of("exact:tradeoff=50") == colour_of("exact") == COLOURS["exact"]
    assert colour_of("somebody-elses", 1) != colour_of("somebody-elses", 2)


def test_a_picture_is_written_as_svg_png_and_csv_the_same_every_time(tmp_path):
    curve = Curve("drc", colour_of("drc"), np.array([1.0, 2.0, 3.0]))

    def write(folder):
        picture = draw_curves([Panel("a", [curve])], value_label="delay (s)", value_column="delay_s")
        return save_picture(picture, folder, "curves")

    first, second = write(tmp_path / "one"), write(tmp_path / "two")
    assert [path.name for path in first] == ["curves.svg", "curves.png", "curves.csv"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[1].read_bytes().startswith(b"\x89PNG")
    assert first[2].read_text().splitlines() == [
        "panel,curve,round,delay_s",
        "a,drc,1,1.0",
        "a,drc,2,2.0",
        "a,drc,3,3.0",
    ]


def test_a_sheet_is_a_csv_file_with_a_header(tmp_path):
    path = save_sheet(Sheet(("a", "b"), [(1, "x,y")]), tmp_path / "new" / "sheet.csv")
    assert path.read_text() == 'a,b\n1,"x,y"\n'
