"""How a table of the matrix is made: statements for Spark, and steps that Spark's SQL has no words for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.builders.spark_iceberg import SparkIceberg

Step: TypeAlias = str | Callable[[SparkIceberg, str], object]
"""A statement, in which `{t}` is the table and `{c}` its catalog; or what is called with the catalog and the table."""

INSERT = "INSERT INTO {{t}} VALUES {}"
COMPACT = "CALL {c}.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))"
COMPACT_DELETES = (
    "CALL {c}.system.rewrite_data_files(table => '{t}', options => "
    "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))"
)


@dataclass(frozen=True)
class Plan:
    """A table, and what the provider does when somebody is refused it: after `fix` everybody reads it."""

    steps: tuple[Step, ...]
    fix: tuple[Step, ...] = ()
    where: str | None = None
    """A test that some of its rows pass: Spark skips the files that the statistics rule out for it."""
    case_sensitive: bool = False
    is_read_by_spark: bool = True
    catalog: str = "hadoop"
    """`hadoop` numbers its metadata files, `nessie` names them anew each time."""


def of(columns: str, *steps: Step, options: str = "") -> tuple[Step, ...]:
    """The steps of a table that Spark creates."""
    return (f"CREATE TABLE {{t}} ({columns}) USING iceberg {options}", *steps)


def properties(*told: str) -> str:
    """A table's properties, each as `name=value`."""
    pairs = (one.split("=", 1) for one in told)
    return f"TBLPROPERTIES ({', '.join(f'{name!r} = {value!r}' for name, value in pairs)})"


def set_properties(*told: str) -> str:
    """The statement that sets properties."""
    return f"ALTER TABLE {{t}} SET {properties(*told)}"


def created_again(query: str) -> tuple[str, ...]:
    """The table made anew from a query of itself; what was published before keeps its files."""
    return (f"CREATE OR REPLACE TABLE {{t}} USING iceberg AS {query}",)
