"""Flower without its telemetry, in the process of the tests."""

import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # read when Flower is imported

import pytest

pytest.importorskip("flwr")
