"""Who will be able to read a staged table once it is published, and whether that is who the contract promises it to.

The server itself is asked, by the code that it publishes with. What can be done about a refusal is in `rewrites.py`.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.contracts import Promise
from lakeshare_pipelines.nessie.client import TableContent
from lakeshare_pipelines.wap.staged import Finding
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import Stores, TableHead, TableSnapshot, read_delta, read_iceberg
from lakeshare_server.tables.delta.snapshot import find_hindrances
from lakeshare_server.tables.serveability import (
    ReasonCode,
    Refusal,
    Verdict,
    judge_serveability,
    refuse_all_clients,
)

DELETE_CODES = frozenset(
    {ReasonCode.ROW_LEVEL_DELETES, ReasonCode.EQUALITY_DELETES, ReasonCode.DELETE_FORMAT}
    | {ReasonCode.LARGE_DELETES}
)
# Older columns in files: all of them anew, since no procedure knows which files have them.
COLUMN_CODES = frozenset(
    {ReasonCode.RENAMED_COLUMNS, ReasonCode.FILES_WITHOUT_IDS, ReasonCode.WIDENED_TYPES}
    | {ReasonCode.OTHER_TYPES_IN_FILES, ReasonCode.COLUMN_DEFAULTS}
    | {ReasonCode.PARTITION_VALUES_NOT_IN_FILES}
)
FORMAT_CODES = frozenset({ReasonCode.FILE_FORMAT})
SOLVABLE = DELETE_CODES | COLUMN_CODES | FORMAT_CODES

COPY_ON_WRITE = {f"write.{verb}.mode": "copy-on-write" for verb in ("delete", "update", "merge")}
IN_PARQUET = {"write.format.default": "parquet"}
DELETES_IN_PARQUET = {"write.delete.format.default": "parquet"}

ALL_FILES = {"rewrite-all": "true"}
# No file is too small or too large: those without deleted rows stay as they are.
FILES_WITH_DELETES = {
    "delete-file-threshold": "1",
    "min-file-size-bytes": "0",
    "max-file-size-bytes": str(2**63 - 1),
}
# PyIceberg 0.12 refuses a scan that meets equality deletes, also those that apply to no file any more.
NO_DELETES_LEFT = {"remove-dangling-deletes": "true"}


@dataclass(frozen=True)
class Rewrite:
    """A rewrite of data files: the table's properties before it, and the options of Iceberg's procedure."""

    properties: Mapping[str, str]
    options: Mapping[str, str]


def find_solvable_codes(promised: Collection[str], verdicts: Iterable[Verdict]) -> frozenset[str]:
    """The codes that a rewrite takes away, of promised clients that could read the table then.

    For a client that something else keeps from the table, too, nothing is rewritten.
    """
    of_clients = [[why.code for why in verdict.refused_for] for verdict in verdicts if verdict.id in promised]
    return frozenset(code for codes in of_clients if SOLVABLE.issuperset(codes) for code in codes if code)


def plan_rewrite(codes: Collection[str]) -> Rewrite:
    """The one rewrite that takes away these codes, all of `SOLVABLE`."""
    found = frozenset(codes)
    properties: dict[str, str] = {}
    # A rewrite of all files leaves no deleted rows either.
    options = FILES_WITH_DELETES if found <= DELETE_CODES else ALL_FILES
    if found & DELETE_CODES:
        properties |= COPY_ON_WRITE
        options = options | NO_DELETES_LEFT
    if ReasonCode.DELETE_FORMAT in found:
        properties |= DELETES_IN_PARQUET
    if found & FORMAT_CODES:
        properties |= IN_PARQUET
    return Rewrite(properties, options)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientMatrix:
    """How each client would get a table; `is_refused` when the server could not even publish it."""

    verdicts: tuple[Verdict, ...]
    is_refused: bool = False

    @classmethod
    def of(cls, table_format: str, head: TableHead) -> Self:
        """Of a table with this head."""
        return cls(tuple(judge_serveability(table_format, head)))

    @classmethod
    def of_refused(cls, why: Unserveable) -> Self:
        """Of a table that the server refuses to read."""
        return cls(tuple(refuse_all_clients(why)), is_refused=True)


def compute_iceberg_matrix(stores: Stores, content: TableContent) -> ClientMatrix:
    """How each client would get an Iceberg table in this state.

    Raises:
        Unavailable: the table's store does not answer.
    """
    log.info("looking at who can read %s", content.metadata_location)
    # Large deletion vectors are files, which only a publication is to leave behind.
    with TemporaryDirectory(prefix="lakeshare-vectors-") as folder:
        try:
            snapshot = read_iceberg(content.metadata_location, content.snapshot_id, Path(folder), stores)
        except Unserveable as refusal:
            return ClientMatrix.of_refused(refusal)
    return ClientMatrix.of("iceberg", snapshot.head)


def compute_delta_matrix(
    stores: Stores,
    staged: Path,
    main: Path,
    version: int | None,
    column: str | None,
    partitions: Sequence[str],
) -> ClientMatrix:
    """How each client would get a Delta table whose `partitions` of `column`, or all files, the staged ones replace.

    `version` is the table's own before that, None when there is none.
    """
    log.info("looking at who can read %s", main)
    try:
        new = read_delta(str(staged), stores=stores)
        if version is None:
            return ClientMatrix.of("delta", new.head)
        head = _compute_head_after(read_delta(str(main), version, stores), new, column, partitions)
    except Unserveable as refusal:
        return ClientMatrix.of_refused(refusal)
    return ClientMatrix.of("delta", head)


def check_serveable(promise: Promise, clients: ClientMatrix, rewritten: Iterable[str]) -> Finding:
    """Whether all promised clients get the table; `rewritten` are the reason codes that staging took away.

    What cannot be published at all blocks, whatever was promised.
    """
    observed = {
        "promised": list(promise.clients),
        "rewritten": list(rewritten),
        "clients": [row for verdict in clients.verdicts for row in _rows(verdict)],
    }
    if clients.is_refused:
        reason = f"it cannot be published: {_describe_reasons(clients.verdicts[0])}"
        return Finding(False, {**observed, "reason": reason}, severity="error")
    missed = [
        verdict for verdict in clients.verdicts if verdict.id in promise.clients and verdict.served_as is None
    ]
    if not missed:
        return Finding(True, observed)
    return Finding(False, {**observed, "reason": "; ".join(_group_by_reason(missed))})


def _compute_head_after(
    before: TableSnapshot, new: TableSnapshot, column: str | None, partitions: Sequence[str]
) -> TableHead:
    """The head that the commit leaves behind: it changes the files and the schema, and nothing else."""
    unchanged = _kept(before.files, column, partitions)
    protocol = {"readerFeatures": before.head.protocol.reader_features}
    metadata = {
        "schemaString": new.schema_string,
        "partitionColumns": new.partition_columns,
        "configuration": before.head.configuration,
    }
    found = find_hindrances(protocol, metadata, unchanged.column("dv_storage").combine_chunks())
    return replace(before.head, schema_string=new.schema_string, hindrances=found)


def _kept(files: pa.Table, column: str | None, partitions: Sequence[str]) -> pa.Table:
    if column is None:
        return files.slice(0, 0)
    values = pc.cast(pc.struct_field(files.column("partition"), column), pa.string())
    return files.filter(pc.invert(pc.is_in(values, pa.array(partitions, pa.string()))))


def _rows(verdict: Verdict) -> list[Mapping[str, Any]]:
    """A client's line of the matrix, or one for each reason why it has none."""
    served = {"client": verdict.id, "served as": verdict.served_as or "not"}
    if not verdict.refused_for:
        return [{**served, "needs": ", ".join(verdict.features), "code": "", "reason": "", "fix": ""}]
    return [
        {**served, "needs": "", "code": one.code or "", "reason": one.reason, "fix": one.fix or ""}
        for one in verdict.refused_for
    ]


def _group_by_reason(missed: Iterable[Verdict]) -> list[str]:
    """One sentence for each reason, with the clients it keeps out."""
    clients: dict[str, list[str]] = {}
    for one in missed:
        clients.setdefault(_describe_reasons(one), []).append(one.id)
    return [f"{', '.join(ids)} could not read it: {why}" for why, ids in clients.items()]


def _describe_reasons(verdict: Verdict) -> str:
    """The reasons, first those that no rewrite takes away: of a long text only the beginning is told."""
    lasting_first = sorted(verdict.refused_for, key=lambda one: one.code in SOLVABLE)
    return " Besides, ".join(_sentence(one) for one in lasting_first)


def _sentence(refusal: Refusal) -> str:
    code = f" [{refusal.code}]" if refusal.code else ""
    return f"{refusal.reason.rstrip('.')}{code}." + (f" {refusal.fix}" if refusal.fix else "")
