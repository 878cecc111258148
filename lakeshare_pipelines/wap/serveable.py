"""Which clients can read a staged table once it is published, and which rewrite of its files would help the others.

Uses the server's own code for serveability, which also publishes.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.contracts.model import Promise
from lakeshare_pipelines.wap.staged import Finding, TablePointer
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import Stores, TableHead, TableSnapshot, read_delta, read_iceberg
from lakeshare_server.tables.delta.snapshot import find_hindrances
from lakeshare_server.tables.serveability import ReasonCode, Verdict, judge_serveability, refuse_all_clients

DELETE_CODES = frozenset(
    {ReasonCode.ROW_LEVEL_DELETES, ReasonCode.EQUALITY_DELETES, ReasonCode.DELETE_FORMAT}
    | {ReasonCode.LARGE_DELETES}
)
# Older columns in files: no procedure selects the affected files, so all are rewritten.
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
# Any file size qualifies; files without deleted rows stay as they are.
ANY_SIZE = {"min-file-size-bytes": "0", "max-file-size-bytes": str(2**63 - 1)}
FILES_WITH_DELETES = {"delete-file-threshold": "1", **ANY_SIZE}
# PyIceberg 0.12 refuses a scan with equality deletes, also when they apply to no file.
NO_DELETES_LEFT = {"remove-dangling-deletes": "true"}


@dataclass(frozen=True)
class Rewrite:
    """A rewrite of data files: table properties to set before it, and options of Iceberg's procedure."""

    properties: Mapping[str, str]
    options: Mapping[str, str]


def find_solvable_codes(promised: Collection[str], verdicts: Iterable[Verdict]) -> frozenset[str]:
    """The codes that a rewrite removes, for promised clients that could read the table afterwards."""
    of_clients = [[why.code for why in verdict.refused_for] for verdict in verdicts if verdict.id in promised]
    return frozenset(code for codes in of_clients if SOLVABLE.issuperset(codes) for code in codes if code)


def plan_rewrite(codes: Collection[str]) -> Rewrite:
    """The one rewrite that removes these codes, all of `SOLVABLE`."""
    codes = frozenset(codes)
    properties: dict[str, str] = {}
    # A rewrite of all files also removes deleted rows.
    options = FILES_WITH_DELETES if codes <= DELETE_CODES else ALL_FILES
    if codes & DELETE_CODES:
        properties |= COPY_ON_WRITE
        options = options | NO_DELETES_LEFT
    if ReasonCode.DELETE_FORMAT in codes:
        properties |= DELETES_IN_PARQUET
    if codes & FORMAT_CODES:
        properties |= IN_PARQUET
    return Rewrite(properties, options)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientMatrix:
    """How the server would serve a table to each client; `is_refused` if it cannot be published at all."""

    verdicts: tuple[Verdict, ...]
    is_refused: bool = False

    @classmethod
    def of(cls, table_format: str, head: TableHead) -> Self:
        return cls(tuple(judge_serveability(table_format, head)))

    @classmethod
    def of_refused(cls, why: Unserveable) -> Self:
        return cls(tuple(refuse_all_clients(why)), is_refused=True)


def compute_iceberg_matrix(stores: Stores, state: TablePointer) -> ClientMatrix:
    """The matrix of an Iceberg table in this state."""
    log.info("checking which clients can read %s", state.metadata_location)
    # Large deletion vectors are files, which only a publication may keep.
    with TemporaryDirectory(prefix="lakeshare-vectors-") as folder:
        try:
            snapshot = read_iceberg(state.metadata_location, state.snapshot_id, Path(folder), stores)
        except Unserveable as refusal:
            return ClientMatrix.of_refused(refusal)
    return ClientMatrix.of("iceberg", snapshot.head)


def compute_delta_matrix(
    stores: Stores,
    staged: str,
    main: str,
    version: int | None,
    partitions: Mapping[str, Sequence[str]] | None,
    replaced: Collection[str] | None = None,
) -> ClientMatrix:
    """The matrix of a Delta table when staged files replace `partitions`, or all files, of `version`.

    `partitions` are values by column; a file with one of them in each column is replaced.
    `replaced` are the paths of the only files that are replaced, as in the log.
    """
    log.info("checking which clients can read %s", main)
    try:
        new = read_delta(staged, stores=stores)
        if version is None:
            return ClientMatrix.of("delta", new.head)
        before = read_delta(main, version, stores)
        head = _compute_head_after(before, new, _select_unchanged(before.files, partitions, replaced))
    except Unserveable as refusal:
        return ClientMatrix.of_refused(refusal)
    return ClientMatrix.of("delta", head)


def check_serveable(promise: Promise, clients: ClientMatrix, rewritten: Iterable[str]) -> Finding:
    """Whether all promised clients can read the table; fails for any table that cannot be published."""
    observed = {
        "promised": list(promise.clients),
        "rewritten": list(rewritten),
        "clients": [row for verdict in clients.verdicts for row in _make_rows(verdict)],
    }
    if clients.is_refused:
        reason = f"it cannot be published: {_describe_reasons(clients.verdicts[0])}"
        return Finding(False, {**observed, "reason": reason}, severity="error")
    clients_by_reason: dict[str, list[str]] = {}
    for verdict in clients.verdicts:
        if verdict.id in promise.clients and verdict.served_as is None:
            clients_by_reason.setdefault(_describe_reasons(verdict), []).append(verdict.id)
    missed = [f"{', '.join(ids)} could not read it: {why}" for why, ids in clients_by_reason.items()]
    return Finding.of(observed, "; ".join(missed))


def _select_unchanged(
    files: pa.Table, partitions: Mapping[str, Sequence[str]] | None, replaced: Collection[str] | None
) -> pa.Table:
    if replaced is not None:
        names = {path.rpartition("/")[2] for path in replaced}
        is_unchanged = [path.rpartition("/")[2] not in names for path in files.column("path").to_pylist()]
        return files.filter(pa.array(is_unchanged, pa.bool_()))
    if partitions is None:
        return files.slice(0, 0)
    is_replaced = pa.array([True] * files.num_rows, pa.bool_())
    for column, found in partitions.items():
        values = pc.cast(pc.struct_field(files.column("partition"), column), pa.string())
        is_replaced = pc.and_(is_replaced, pc.is_in(values, pa.array(found, pa.string())))
    return files.filter(pc.invert(is_replaced))


def _compute_head_after(before: TableSnapshot, new: TableSnapshot, unchanged: pa.Table) -> TableHead:
    """The table's head after the commit, which changes only the files and the schema."""
    protocol = {"readerFeatures": before.head.protocol.reader_features}
    metadata = {
        "schemaString": new.head.schema_string,
        "partitionColumns": new.head.partition_columns,
        "configuration": before.head.configuration,
    }
    hindrances = find_hindrances(protocol, metadata, unchanged.column("dv_storage").combine_chunks())
    return replace(before.head, schema_string=new.head.schema_string, hindrances=hindrances)


def _make_rows(verdict: Verdict) -> list[Mapping[str, Any]]:
    """A client's row of the matrix, or one row for each reason why it is refused."""
    served = {"client": verdict.id, "served as": verdict.served_as or "not"}
    if not verdict.refused_for:
        return [{**served, "needs": ", ".join(verdict.features), "code": "", "reason": "", "fix": ""}]
    return [
        {**served, "needs": "", "code": why.code or "", "reason": why.reason, "fix": why.fix or ""}
        for why in verdict.refused_for
    ]


def _describe_reasons(verdict: Verdict) -> str:
    """The reasons; those that no rewrite removes come first, because long texts are cut at the end."""
    sentences = []
    for why in sorted(verdict.refused_for, key=lambda why: why.code in SOLVABLE):
        code = f" [{why.code}]" if why.code else ""
        sentences.append(f"{why.reason.rstrip('.')}{code}." + (f" {why.fix}" if why.fix else ""))
    return " Besides, ".join(sentences)
