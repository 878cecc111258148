"""What a publication records: which state of which table was made visible, by whom, on what evidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

TableFormat = Literal["iceberg", "delta"]


@dataclass(frozen=True, kw_only=True)
class NewPublication:
    """A publication that has no number yet; `table` is the lake's own name, like `flights.departures`.

    `changes_digest` is that of its index of changes: None for Delta tables, whose log has them, and where none was
    made.
    `schema_id` is Iceberg's id of the columns that readers get, of followed tables only.
    """

    table: str
    set_name: str
    format: TableFormat
    location: str
    table_id: str
    metadata_location: str | None = None
    snapshot_id: int | None = None
    schema_id: int | None = None
    delta_version: int | None = None
    nessie_hash: str | None = None
    schema_string: str
    rows: int
    files: int
    size_bytes: int
    index_digest: str
    contract_digest: str
    verdicts: Mapping[str, Any]
    run_id: str
    partition: str
    audited: bool = True
    rollback_of: int | None = None
    changes_digest: str | None = None


@dataclass(frozen=True, kw_only=True)
class Publication(NewPublication):
    """A publication in the ledger: its number is what recipients see."""

    version: int
    published_at: datetime


@dataclass(frozen=True)
class NumberedSnapshot:
    """What one number of an Iceberg table pins, and the run that gave it."""

    version: int
    table_id: str
    snapshot_id: int | None
    run_id: str
