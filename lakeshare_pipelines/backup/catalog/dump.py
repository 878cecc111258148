"""The catalog of this moment into a point: ledger, shares, grants, contracts, file indexes, and Nessie's main.

Of tokens and keys only the digests are in the database, and so in the dump. Coming back is in bring_back.py.
"""

import datetime as dt
import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import Table, func, select
from sqlalchemy.orm import Session

from lakeshare_pipelines.backup.catalog.manifest import (
    MANIFEST,
    DumpedFile,
    DumpedNessie,
    DumpedTable,
    Manifest,
    dump_folder,
    index_key,
)
from lakeshare_pipelines.backup.catalog.state import LEFT_OUT, kept_tables, lines_of
from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import CatalogRecord
from lakeshare_pipelines.contracts.loader import PACKAGED
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.process import nessie_dir
from lakeshare_pipelines.nessie.server import nessie_for
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog import open_catalog
from lakeshare_server.catalog.database import HEAD
from lakeshare_server.catalog.models import AuditChainRow, PublicationRow
from lakeshare_server.tables.index import index_path

FILE_BYTES = 32 * 1024**2
"""Lines go into files of about this size: none is held in memory whole with all the others."""


def dump_catalog(settings: LakeSettings, backup: Backup, points: Points, day: str) -> CatalogRecord:
    """Write the catalog into the folder of a day's point; again, it is written again, as it is then.

    The database is read in one look, Nessie after it: what is in the ledger is on main, and what is on main but not
    yet in the ledger is repaired from there (`lakeshare repair`).

    Raises:
        BackupError: the store of the points refuses, or a contract cannot be read.
        Unavailable: the database does not answer.
        NessieError: Nessie does not.
    """
    dump = _Dump(points, dump_folder(points, day))
    with closing(open_catalog(settings.catalog_url)) as catalog, catalog.reading() as session:
        tables = tuple(dump.table(session, table) for table in kept_tables())
        audit_head = session.scalar(select(AuditChainRow.hash).where(AuditChainRow.name == "head"))
        digests = _digests(session)
        published = session.scalar(select(func.count(PublicationRow.table_name.distinct()))) or 0
    indexes, missing = dump.indexes(settings, digests)
    declared = [settings.backups_file] if settings.backups_file else []
    manifest = Manifest(
        lakeshare=version("lakeshare"),
        revision=HEAD,
        dumped_at=dt.datetime.now(dt.UTC),
        tables=tables,
        left_out=tuple(sorted(LEFT_OUT)),
        audit_head=audit_head,
        contracts=tuple(dump.files("contracts", _contracts(settings))),
        backups=next(dump.files("declared", declared), None),
        indexes=indexes,
        missing_indexes=missing,
        nessie=_dump_nessie(settings, dump),
    )
    dump.put(MANIFEST, manifest.model_dump_json(indent=1).encode())
    counted = manifest.table
    return CatalogRecord(
        key=f"{dump.folder}{MANIFEST}",
        nessie_hash=manifest.nessie.hash if manifest.nessie else None,
        tables=published,
        publications=counted("publications").rows,
        shares=counted("shares").rows,
        grants=counted("grants").rows + counted("group_grants").rows,
    )


class _Dump:
    """Files on their way into a dump."""

    def __init__(self, points: Points, folder: str) -> None:
        self.points, self.folder = points, folder

    def put(self, name: str, content: bytes, rows: int | None = None) -> DumpedFile:
        """Write one file."""
        self.points.store.put(self.folder + name, content)
        return DumpedFile(name=name, size_bytes=len(content), sha256=sha256(content).hexdigest(), rows=rows)

    def lines(self, name: str, lines: Iterable[bytes]) -> tuple[DumpedFile, ...]:
        """Write lines as files `<name>-00000.jsonl`, …; no line, no file."""
        files: list[DumpedFile] = []
        held, size = list[bytes](), 0
        for line in lines:
            held.append(line)
            size += len(line)
            if size >= FILE_BYTES:
                files.append(self.put(f"{name}-{len(files):05}.jsonl", b"".join(held), len(held)))
                held, size = [], 0
        if held:
            files.append(self.put(f"{name}-{len(files):05}.jsonl", b"".join(held), len(held)))
        return tuple(files)

    def table(self, session: Session, table: Table) -> DumpedTable:
        """Write the rows of one table."""
        files = self.lines(f"tables/{table.name}", lines_of(session, table))
        return DumpedTable(name=table.name, rows=sum(file.rows or 0 for file in files), files=files)

    def files(self, folder: str, paths: Iterable[Path]) -> Iterator[DumpedFile]:
        """Write files of this host under their names."""
        for path in paths:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise BackupError(
                    str(path),
                    f"it cannot be read: {error.strerror}",
                    "Correct it, then make the point again.",
                ) from error
            yield self.put(f"{folder}/{path.name}", content)

    def indexes(
        self, settings: LakeSettings, digests: Iterable[str]
    ) -> tuple[tuple[DumpedFile, ...], tuple[str, ...]]:
        """Write what no point before had; returns the indexes there are, and the digests of those there are not."""
        found, missing = list[DumpedFile](), list[str]()
        for digest in digests:
            path, key = index_path(settings.index_dir, digest), index_key(self.points, digest)
            if not path.exists():
                missing.append(digest)
                continue
            held = self.points.store.head(key)
            if held is None or held.size_bytes != path.stat().st_size:
                self.points.store.put(key, path.read_bytes())
            found.append(DumpedFile(name=path.name, size_bytes=path.stat().st_size, sha256=digest))
        return tuple(found), tuple(missing)


def _digests(session: Session) -> list[str]:
    """The digests of all file indexes and changes that publications name."""
    rows = session.execute(select(PublicationRow.index_digest, PublicationRow.changes_digest)).all()
    return sorted({digest for row in rows for digest in row if digest})


def _contracts(settings: LakeSettings) -> list[Path]:
    folder = settings.contracts_dir or PACKAGED
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def _dump_nessie(settings: LakeSettings, dump: _Dump) -> DumpedNessie | None:
    """The state and the commits of main; None where there never was a Nessie."""
    if settings.nessie_uri is None and not nessie_dir(settings).exists():
        return None
    with nessie_for(settings, keep=False) as endpoint:
        nessie = Nessie.connect(endpoint, "writer")
        head = nessie.reference("main").hash
        contents = sorted(nessie.contents(f"main@{head}"))
        told = ({"table": table, **asdict(content)} for table, content in contents)
        state = dump.lines("nessie/main", map(_line, told))
        log = dump.lines("nessie/log", map(_line, nessie.log(f"main@{head}")))
    return DumpedNessie(hash=head, tables=len(contents), state=state, log=log)


def _line(said: object) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"
