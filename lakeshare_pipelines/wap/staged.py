"""What travels between write, audit and publish: small records that fit in a run's storage as JSON."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

WHOLE = ("all",)
"""The partitions of a set that is delivered and replaced as a whole."""


@dataclass(frozen=True)
class StagedTable:
    """One table of a staged set: the rows of this run, before anybody judged them.

    `rewritten` are the reason codes of what kept promised clients from the table until staging rewrote its files.
    Of a view `view` is the digest of its definition, and `is_whole` says that the run made it of all that its table
    has, and not of its own rows alone.
    """

    table: str
    rows: int
    rejected: int = 0
    problems: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()
    view: str | None = None
    is_whole: bool = False

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The table a record was made from; records of earlier versions say nothing of rewrites."""
        lists = {"problems": tuple(record["problems"]), "rewritten": tuple(record.get("rewritten", ()))}
        return cls(**{**record, **lists})


@dataclass(frozen=True)
class Staged:
    """A set written where nobody reads it.

    `ref` is the Nessie branch (Iceberg) or the staging folder's name (Delta). `base` is the state of main it
    was made from: a Nessie hash, or the tables' Delta versions as JSON. `head` is the state to be audited and
    published: a Nessie hash, or the SHA-256 of the staged logs.
    """

    set_name: str
    run_id: str
    partitions: tuple[str, ...]
    ref: str
    base: str
    head: str
    tables: tuple[StagedTable, ...]
    deliveries: Mapping[str, str]
    contract_digest: str
    attempt: int = 0

    @property
    def partition(self) -> str:
        """The partition's name, or `first...last` of a range."""
        return partition_label(self.partitions)

    @property
    def title(self) -> str:
        """How messages name it."""
        return f"set {self.set_name}, partition {self.partition}, staged at {self.ref}"

    def record_of(self, table: str) -> StagedTable | None:
        """What was staged of a table; None when nothing was."""
        return next((one for one in self.tables if one.table == table), None)

    def partitions_of(self, table: str) -> tuple[str, ...]:
        """The partitions of a table that the run replaces."""
        record = self.record_of(table)
        return WHOLE if record is not None and record.is_whole else self.partitions

    def as_record(self) -> dict[str, Any]:
        """JSON-able form; `from_record` reads it back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The staged set a record was made from."""
        tables = tuple(StagedTable.from_record(table) for table in record["tables"])
        return cls(**{**record, "partitions": tuple(record["partitions"]), "tables": tables})

    def as_json(self) -> str:
        """`as_record` as compact text, for commit metadata."""
        return json.dumps(self.as_record(), separators=(",", ":"), sort_keys=True)


def partition_label(partitions: tuple[str, ...]) -> str:
    """`2013-01-01`, or `2013-01-01...2013-01-31` (Dagster's own form of a range)."""
    return partitions[0] if len(partitions) == 1 else f"{partitions[0]}...{partitions[-1]}"


def staging_name(set_name: str, partitions: tuple[str, ...], run_id: str, attempt: int) -> str:
    """`wap-<set>-<partition>-<run>`, with `-r<n>` for the n-th replay; without `/`, which Nessie's paths forbid."""
    label = re.sub(r"[^0-9A-Za-z._-]", "_", partition_label(partitions).replace("...", "_"))
    replay = f"-r{attempt}" if attempt else ""
    return f"{staging_prefix(set_name)}{label}-{run_id[:8]}{replay}"


def staging_prefix(set_name: str) -> str:
    """How the staging places of a set begin."""
    return f"wap-{set_name}-"
