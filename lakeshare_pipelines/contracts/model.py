"""What a contract says, as the pipelines use it: sets, tables, columns, rules, references, shares.

The YAML is read in `document.py`, judged in `checks.py` and turned into these records in `loader.py`.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Severity = Literal["error", "warning"]
Scope = Literal["delta", "table"]


@dataclass(frozen=True)
class Column:
    """One column. `type` is Spark's own short spelling: `int`, `string`, `decimal(10,2)`.

    `source` is the column's name in the delivered file when it differs; `expression` is Spark SQL over the other
    columns for one that no file holds; `lineage` names what a derived column comes from, as `table.column`.
    """

    name: str
    type: str
    required: bool = False
    unique: bool = False
    primary_key: bool = False
    pii: bool = False
    description: str = ""
    source: str | None = None
    expression: str | None = None
    lineage: tuple[str, ...] = ()

    @property
    def delivered_as(self) -> str | None:
        """Name in the delivered file; None for a computed column."""
        return None if self.expression else self.source or self.name


@dataclass(frozen=True)
class Rule:
    """One expectation. Scope `delta` judges the rows of a run, `table` the table as it stands after it."""

    name: str
    table: str
    expectation: str
    kwargs: Mapping[str, Any]
    severity: Severity = "error"
    scope: Scope = "delta"
    description: str = ""


@dataclass(frozen=True)
class Reference:
    """Each non-null combination of `columns` in `table` exists as `to_columns` in `to_table`, after the run."""

    name: str
    table: str
    columns: tuple[str, ...]
    to_table: str
    to_columns: tuple[str, ...]
    severity: Severity = "error"
    description: str = ""


@dataclass(frozen=True)
class Drift:
    """How far the table's row count may move in one run, against main; None: any far."""

    max_shrink_fraction: float | None = None
    max_growth_fraction: float | None = None
    severity: Severity = "warning"


@dataclass(frozen=True)
class Reading:
    """How the delivered text files are to be understood; Parquet speaks for itself."""

    null_values: tuple[str, ...] = ("",)
    delimiter: str = ","
    multiline: bool = False


@dataclass(frozen=True)
class Promise:
    """Clients that are to read every publication of a table, by their ids of `lakeshare_server.tables.serveability`.

    `severity` is of the check that they can; with `rewrite` the staged table is rewritten where they could not.
    """

    clients: tuple[str, ...] = ()
    severity: Severity = "error"
    rewrite: bool = True


@dataclass(frozen=True)
class PerRecipient:
    """The partition column of a view that tells whose a row is; rows without a value in it are nobody's.

    `value` is Spark SQL over the table's columns, for a column that the table does not have; an array of values gives
    the row to each. With `recipient_property` each recipient reads the rows that hold its own value of that property.
    """

    column: str
    value: str | None = None
    recipient_property: str | None = None

    @property
    def rule(self) -> str | None:
        """What restricts every recipient of the view."""
        name = self.recipient_property
        return None if name is None else f"{self.column} = current_recipient('{name}')"


@dataclass(frozen=True)
class View:
    """Columns, and the rows a Spark SQL predicate is true for, of one table of the set."""

    of: str
    columns: tuple[str, ...]
    where: str | None = None
    per_recipient: PerRecipient | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of all that decides which rows the view has; whose they are is decided by its rule."""
        said = asdict(self)
        if self.per_recipient is not None:
            said["per_recipient"].pop("recipient_property")
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Table:
    """One table: of a `source` (file stem or glob in the delivery), or a `derive` (Spark SQL), or a `view`."""

    name: str
    format: Literal["iceberg", "delta"]
    columns: tuple[Column, ...]
    partition_by: tuple[tuple[str, str], ...] = ()
    source: str | None = None
    derive: str | None = None
    view: View | None = None
    depends_on: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    references: tuple[Reference, ...] = ()
    location: str | None = None
    description: str = ""
    allow_schema_changes: bool = False
    max_quarantined_fraction: float = 0.0
    drift: Drift = Drift()
    reading: Reading = Reading()
    serveable_to: Promise = Promise()

    @property
    def short_name(self) -> str:
        """Name without its namespace; what `{…}` stands for in `derive`."""
        return self.name.rsplit(".", 1)[-1]

    @property
    def namespace(self) -> str:
        """Name up to the last dot."""
        return self.name.rsplit(".", 1)[0]

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Columns of the primary key; empty when there is none."""
        return tuple(column.name for column in self.columns if column.primary_key)

    def column(self, name: str) -> Column:
        """The column of that name.

        Raises:
            KeyError: there is none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(frozen=True)
class ShareEntry:
    """Recipients of `share` read `table` as `schema`.`name`."""

    share: str
    schema: str
    name: str
    table: str


@dataclass(frozen=True)
class SnowflakeEntry:
    """Snowflake's table `database`.`schema`.`name` follows `table`."""

    database: str
    schema: str
    name: str
    table: str


@dataclass(frozen=True)
class SetContract:
    """Tables that are published together, each after the ones it depends on."""

    name: str
    version: str
    description: str
    owners: tuple[str, ...]
    domain: str
    tables: tuple[Table, ...]
    partitioning: Literal["daily", "none"]
    first_partition: str | None
    shares: tuple[ShareEntry, ...]
    digest: str
    path: Path
    snowflake: tuple[SnowflakeEntry, ...] = ()

    def table(self, name: str) -> Table:
        """A table by its lake name or its short name.

        Raises:
            KeyError: the set has none of that name.
        """
        for table in self.tables:
            if name in (table.name, table.short_name):
                return table
        raise KeyError(name)

    def is_partition(self, key: str) -> bool:
        """Whether `key` names a partition of the set: `all`, or a day from `first_partition` on."""
        if self.partitioning == "none":
            return key == "all"
        try:
            day = dt.date.fromisoformat(key)
        except ValueError:
            return False
        # fromisoformat also takes 20130101 and 2013-W01-1, which would be second names of a day.
        return day.isoformat() == key and (self.first_partition is None or key >= self.first_partition)
