"""Backup points of a folder of tables, made by plain copies: what the steps before a restore leave behind."""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from lakeshare_pipelines.backup.config import Backup
from lakeshare_pipelines.backup.model import (
    POINT_COPIES,
    CopyRecord,
    Estimate,
    FoundTable,
    ListingRecord,
    PlanRecord,
    Point,
    TableProof,
    Verification,
    write_rows,
)
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import Catalog, open_catalog
from tests.builders.kept_folder import KeptFolder
from tests.builders.kernel import read_by_the_kernel

DAY = "2026-11-20"
MUTABLE = re.compile(r"_last_checkpoint|version-hint\.text|_SUCCESS|\..*\.crc")


@dataclass(frozen=True)
class KeptPoint:
    """A point of the folder `lake` in a folder that is put back before each test."""

    folder: KeptFolder
    backup: Backup
    point: Point

    @classmethod
    def of(cls, folder: Path) -> Self:
        backup = a_backup(folder / "lake", folder / "backups")
        return cls(KeptFolder(folder), backup, a_point(backup, folder / "held"))

    def put_back(self) -> tuple[LakeSettings, Catalog]:
        settings = LakeSettings(_env_file=None, state_dir=self.folder.put_back() / "state")
        return settings, open_catalog(settings.catalog_url)


def a_backup(source: Path, target: Path) -> Backup:
    """A backup of one folder into another."""
    return Backup(name="lake", source=StoreAddress(url=str(source)), target=StoreAddress(url=str(target)))


def a_point(backup: Backup, scratch: Path, day: str = DAY, *, below: str = "", **proved: Any) -> Point:
    """Copy the source `below` a prefix, and say of its tables that they were proved; `proved` changes what is said."""
    store = open_store(backup.source)
    listed = [one for one in store.list(below) if not MUTABLE.fullmatch(one.key.rpartition("/")[2])]
    tables = list(_tables(backup, [one.key for one in listed]))
    rows = []
    for one in listed:
        root = next((table.root for table in tables if one.key.startswith(f"{table.root}/")), None)
        rows.append(_copied(backup, one, root, day))
    shutil.rmtree(scratch, ignore_errors=True)
    write_rows(scratch, POINT_COPIES, [pa.Table.from_pylist(rows, POINT_COPIES)])
    proofs = tuple(_proof(backup, table, [row["key"] for row in rows], proved) for table in tables)
    point = _point(backup, day, proofs, len(rows))
    Points(backup).write(point, scratch)
    return point


def _copied(backup: Backup, one: Any, root: str | None, day: str) -> dict[str, Any]:
    source, stored = Path(backup.source.url) / one.key, f"objects/{one.key}"
    copy = Path(backup.target.url) / stored
    copy.parent.mkdir(parents=True, exist_ok=True)
    # With its time, as the engines of folders do.
    shutil.copy2(source, copy)
    head = open_store(backup.target).head(stored)
    assert head is not None
    return {
        "bucket": backup.source.bucket,
        "key": one.key,
        "size_bytes": one.size_bytes,
        "last_modified": one.last_modified,
        "etag": one.etag,
        "storage_class": "STANDARD",
        "stored_key": stored,
        "table_root": root,
        "first_point": day,
        "stored_etag": head.etag,
        "checksum": f"sha256:{sha256(source.read_bytes()).hexdigest()}",
        "level": 3,
        "is_healed": False,
    }


def _tables(backup: Backup, keys: list[str]) -> Iterator[FoundTable]:
    roots: dict[str, Any] = {}
    for key in keys:
        if told := re.match(r"(.+)/_delta_log/\d{20}\.json$", key):
            roots[told[1]] = "delta"
        elif told := re.match(r"(.+)/metadata/[^/]+metadata\.json$", key):
            roots[told[1]] = "iceberg"
    for root, kind in sorted(roots.items()):
        yield FoundTable(bucket=backup.source.bucket, root=root, format=kind, stored_root=f"objects/{root}")


def _proof(backup: Backup, table: FoundTable, keys: list[str], proved: dict[str, Any]) -> TableProof:
    location = backup.source.location(table.root)
    told: dict[str, Any] = {"table": table, "status": "verified", "level": 4}
    if table.format == "delta":
        from deltalake import DeltaTable

        rows = read_by_the_kernel(Path(location)).num_rows
        told |= {"version": DeltaTable(location).version(), "oldest_version": 0, "rows": rows}
    else:
        from pyiceberg.table import StaticTable

        key = max(one for one in keys if re.match(f"{table.root}/metadata/[^/]+metadata.json", one))
        static = StaticTable.from_metadata(backup.source.location(key))
        snapshot = static.current_snapshot()
        assert snapshot is not None
        told |= {
            "version": snapshot.sequence_number,
            "snapshot_id": snapshot.snapshot_id,
            "metadata_key": key,
        }
        told |= {"rows": static.scan().to_arrow().num_rows}
    return TableProof.model_validate(told | proved)


def _point(backup: Backup, day: str, proofs: tuple[TableProof, ...], objects: int) -> Point:
    now = datetime.now(UTC)
    nothing = Estimate(
        objects=objects, size_bytes=0, held_objects=0, held_bytes=0, requests=0, usd=0, minutes=0, by_lane={}
    )
    tables = tuple(proof.table for proof in proofs)
    return Point(
        backup=backup.name,
        day=day,
        as_of=now,
        made_at=now,
        layout="incremental",
        status="verified",
        target=backup.target.url,
        listing=ListingRecord(kind="generator", location="", scan_started_at=now, rows=objects, size_bytes=0),
        plan=PlanRecord(day=day, as_of=now, previous=None, tables=tables, estimate=nothing, left_out={}),
        copied=CopyRecord(engine="local", succeeded=objects, failed=0, size_bytes=0, seconds=0, reports=()),
        verification=Verification(
            status="verified",
            tables=proofs,
            objects=objects,
            size_bytes=0,
            accounted_for=True,
            failed_objects=0,
        ),
    )
