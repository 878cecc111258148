"""The table that a snippet reads, as recipients call it, and where they read what they need for it."""

import re
from dataclasses import dataclass
from typing import Literal

EngineName = Literal[
    "pyiceberg", "pandas", "polars", "duckdb", "duckdb-sql", "spark", "trino", "power-bi", "snowflake"
]
Door = Literal["iceberg", "delta-sharing"]
Storage = Literal["credentials", "signed requests", "disk"]
ROWS = 10


@dataclass(frozen=True)
class SnippetTable:
    """A shared table; `profile` is the path of a recipient's profile, `iceberg_url` and `sharing_url` its doors.

    `storage` is how Iceberg clients get at the files, in a store of this `scheme`; `needs_delta` says that the parquet
    format cannot carry the table.
    """

    share: str
    schema: str
    name: str
    profile: str
    iceberg_url: str
    storage: Storage | None
    scheme: str
    needs_delta: bool = False
    sharing_url: str = ""

    @property
    def path(self) -> str:
        """What recipients call it, on one line."""
        return " ".join(f"{self.share}.{self.schema}.{self.name}".split())

    @property
    def alias(self) -> str:
        """The share as the name of a catalog in any engine."""
        return re.sub(r"[^a-z0-9_]", "_", self.share.lower())
