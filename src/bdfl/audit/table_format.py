"""How a table is written."""

from enum import StrEnum


class Format(StrEnum):
    """Also the end of the file's name."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"
