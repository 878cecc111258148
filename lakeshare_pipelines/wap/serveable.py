"""Who will be able to read a staged table once it is published, and whether that is who the contract promises it to.

The server itself is asked, by the code that it publishes with. What can be done about a refusal is in `rewrites.py`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_pipelines.contracts import Promise
from lakeshare_pipelines.nessie.records import TableContent
from lakeshare_pipelines.wap.rewrites import SOLVABLE
from lakeshare_pipelines.wap.verdicts import Finding
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables import Stores, TableHead, TableSnapshot, read_delta, read_iceberg
from lakeshare_server.tables.delta.features import hindrances
from lakeshare_server.tables.serveability import Refusal, Verdict, nobody_is_served, serveability

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientMatrix:
    """How each client would get a table; `is_refused` when the server could not even publish it."""

    verdicts: tuple[Verdict, ...]
    is_refused: bool = False

    @classmethod
    def of(cls, table_format: str, head: TableHead) -> Self:
        """Of a table with this head."""
        return cls(tuple(serveability(table_format, head)))

    @classmethod
    def of_refused(cls, why: Unserveable) -> Self:
        """Of a table that the server refuses to read."""
        return cls(tuple(nobody_is_served(why)), is_refused=True)


def of_iceberg(stores: Stores, content: TableContent) -> ClientMatrix:
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


def of_delta(
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
        head = _after(read_delta(str(main), version, stores), new, column, partitions)
    except Unserveable as refusal:
        return ClientMatrix.of_refused(refusal)
    return ClientMatrix.of("delta", head)


def serveable(promise: Promise, clients: ClientMatrix, rewritten: Iterable[str]) -> Finding:
    """Whether all promised clients get the table; `rewritten` are the reason codes that staging took away.

    What cannot be published at all blocks, whatever was promised.
    """
    observed = {
        "promised": list(promise.clients),
        "rewritten": list(rewritten),
        "clients": [row for one in clients.verdicts for row in _rows(one)],
    }
    if clients.is_refused:
        reason = f"it cannot be published: {_why(clients.verdicts[0])}"
        return Finding(False, {**observed, "reason": reason}, severity="error")
    missed = [one for one in clients.verdicts if one.id in promise.clients and one.served_as is None]
    if not missed:
        return Finding(True, observed)
    return Finding(False, {**observed, "reason": "; ".join(_by_reason(missed))})


def _after(
    before: TableSnapshot, new: TableSnapshot, column: str | None, partitions: Sequence[str]
) -> TableHead:
    """The head that the commit leaves behind: it changes the files and the schema, and nothing else."""
    kept = _kept(before.files, column, partitions)
    protocol = {"readerFeatures": before.head.protocol.reader_features}
    metadata = {
        "schemaString": new.schema_string,
        "partitionColumns": new.partition_columns,
        "configuration": before.head.configuration,
    }
    found = hindrances(protocol, metadata, kept.column("dv_storage").combine_chunks())
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


def _by_reason(missed: Iterable[Verdict]) -> list[str]:
    """One sentence for each reason, with the clients it keeps out."""
    clients: dict[str, list[str]] = {}
    for one in missed:
        clients.setdefault(_why(one), []).append(one.id)
    return [f"{', '.join(ids)} could not read it: {why}" for why, ids in clients.items()]


def _why(verdict: Verdict) -> str:
    """The reasons, first those that no rewrite takes away: of a long text only the beginning is told."""
    lasting_first = sorted(verdict.refused_for, key=lambda one: one.code in SOLVABLE)
    return " Besides, ".join(_sentence(one) for one in lasting_first)


def _sentence(refusal: Refusal) -> str:
    code = f" [{refusal.code}]" if refusal.code else ""
    return f"{refusal.reason.rstrip('.')}{code}." + (f" {refusal.fix}" if refusal.fix else "")
