"""The uplink's laws against numbers worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bdfl.radio import channel_gain, gain_for_rate, power_for_upload_time, uplink_rate, upload_energy, upload_time


def test_gain_at_the_papers_distance_is_two_and_a_half_times_ten_to_the_minus_eight():
    gain = channel_gain(1e-3, np.array([1.0, 2.0]), np.array([200.0, 200.0]), 1.0, 2.0)
    assert gain == pytest.approx([2.5e-8, 5e-8], rel=1e-15)


def test_gain_is_never_above_that_at_the_reference_distance():
    assert channel_gain(1e-3, np.ones(2), np.array([0.0, 0.5]), 1.0, 2.0) == pytest.approx([1e-3, 1e-3])


def test_rate_at_signal_to_noise_three_is_twice_the_bandwidth():
    # B N0 = 1e-3 * 1e3 = 1 W of noise; 3 W of signal
    assert uplink_rate(1e3, np.array([3.0]), np.array([1.0]), 1e-3) == pytest.approx([2e3], rel=1e-15)


def test_rate_of_the_papers_client_is_1462_kilobit_per_second():
    # signal to noise 0.2 * 2.5e-8 / 1.8e-11 = 277.8; log2(278.8) = 8.123
    rate = uplink_rate(180e3, np.array([0.2]), np.array([2.5e-8]), 1e-16)
    assert rate == pytest.approx([180e3 * 8.123], rel=1e-4)
    assert upload_time(np.array([1e6]), rate) == pytest.approx([0.6839], rel=1e-3)


def test_upload_takes_bits_over_rate_and_power_times_that():
    time_s = upload_time(np.array([1e6, 0.0]), np.array([2e6, 2e6]))
    assert time_s.tolist() == [0.5, 0.0]
    assert upload_energy(np.array([0.2, 0.2]), time_s) == pytest.approx([0.1, 0.0])


def test_a_model_at_rate_zero_never_arrives_and_costs_everything():
    rate = uplink_rate(1e3, np.array([0.0, 1.0]), np.array([1.0, 0.0]), 1e-3)
    time_s = upload_time(np.array([1.0, 1.0]), rate)
    assert rate.tolist() == [0.0, 0.0]
    assert np.isinf(time_s).all()
    assert np.isinf(upload_energy(np.array([0.0, 1.0]), time_s)).all()


@given(st.floats(1e-3, 10), st.floats(1e-9, 1e-6), st.floats(1e5, 1e6))
def test_the_power_for_an_upload_time_uploads_in_that_time(power_w, gain, bits):
    gains, model_bits = np.array([gain]), np.array([bits])
    time_s = upload_time(model_bits, uplink_rate(180e3, np.array([power_w]), gains, 1e-16))
    again_w = power_for_upload_time(model_bits * np.log(2.0) / 180e3, time_s, 180e3 * 1e-16 / gains)
    assert again_w == pytest.approx([power_w], rel=1e-9)


@given(
    st.floats(1e3, 1e9),
    st.floats(1e-3, 10.0),
    st.floats(1e-21, 1e-12),
    st.floats(1e-3, 20.0),
)
def test_the_gain_for_a_rate_gives_that_rate(bandwidth_hz, power_w, noise_w_per_hz, rate_per_hz):
    rate = np.array([bandwidth_hz * rate_per_hz])
    gain = gain_for_rate(bandwidth_hz, np.array([power_w]), rate, noise_w_per_hz)
    assert uplink_rate(bandwidth_hz, np.array([power_w]), gain, noise_w_per_hz) == pytest.approx(rate, rel=1e-9)


def test_no_gain_makes_a_rate_of_zero_and_none_makes_one_beyond_all_floats():
    gain = gain_for_rate(1e3, np.array([1.0, 1.0, 0.0]), np.array([0.0, 1e7, 1.0]), 1e-16)
    assert gain.tolist() == [0.0, np.inf, np.inf]
