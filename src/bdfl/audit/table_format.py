"""File formats of exported tables."""

from enum import StrEnum


class Format(StrEnum):
    """A file format; its value is also the file extension."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"
