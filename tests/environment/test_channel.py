"""Every fading law has mean 1 and its closed-form distribution."""

import numpy as np
import pytest
from scipy import stats

from bdfl.environment import Purpose, draw_fading, stream
from bdfl.environment.draws import draw_shadowing
from bdfl.scenario import Fading, FadingKind

NUM = 40_000
LAWS = [
    (Fading(kind=FadingKind.RAYLEIGH), stats.expon()),
    # A Rician power gain is a noncentral chi-square with 2 degrees of freedom, noncentrality 2K, scale 1/(2(K+1)).
    (Fading(kind=FadingKind.RICIAN, k_factor=20.0), stats.ncx2(2, 40.0, scale=1 / 42)),
    (Fading(kind=FadingKind.RICIAN, k_factor=0.5), stats.ncx2(2, 1.0, scale=1 / 3)),
    (Fading(kind=FadingKind.RICIAN, k_factor=0.0), stats.expon()),
    (Fading(kind=FadingKind.NAKAGAMI, shape=0.5), stats.gamma(0.5, scale=2.0)),
    (Fading(kind=FadingKind.NAKAGAMI, shape=3.0), stats.gamma(3.0, scale=1 / 3)),
]


@pytest.mark.parametrize(("fading", "law"), LAWS, ids=lambda value: str(value)[:60])
def test_fading_follows_its_law_with_mean_one(fading, law):
    draws = draw_fading(stream(7, Purpose.FADING, 1), fading, NUM)
    assert law.mean() == pytest.approx(1.0)
    assert draws.mean() == pytest.approx(1.0, abs=5 * law.std() / np.sqrt(NUM))
    assert stats.kstest(draws, law.cdf).pvalue > 0.01
    assert (draws >= 0).all()


@pytest.mark.parametrize("kind", FadingKind)
def test_a_clients_fading_does_not_change_when_clients_are_added(kind):
    fading = Fading(kind=kind)
    few, many = (draw_fading(stream(3, Purpose.FADING, 5), fading, num) for num in (10, 1000))
    assert (few == many[:10]).all()


def test_no_fading_is_one():
    assert draw_fading(stream(0, Purpose.FADING), Fading(kind=FadingKind.NONE), 3).tolist() == [1.0, 1.0, 1.0]


def test_shadowing_is_normal_in_decibel_with_median_one():
    shadowing_db = 10 * np.log10(draw_shadowing(stream(5, Purpose.SHADOWING, 0), 8.0, NUM))
    assert stats.kstest(shadowing_db, stats.norm(0.0, 8.0).cdf).pvalue > 0.01
