"""Settings of all tests: the same examples every time, and no clock in the verdict."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

