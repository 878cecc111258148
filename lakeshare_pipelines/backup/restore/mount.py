"""A table of a point opened where its copies are, without copying: read only, for as long as the point is kept."""

from dataclasses import dataclass

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import Point
from lakeshare_pipelines.backup.restore.chosen import Chosen, chosen
from lakeshare_pipelines.backup.restore.elsewhere import copies_of, location
from lakeshare_pipelines.backup.restore.records import Wish
from lakeshare_pipelines.backup.restore.work import Say, unsaid
from lakeshare_pipelines.backup.rewriting import MOUNTED, rewrite_table, whole_snapshots
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.stores import normalised


@dataclass(frozen=True)
class Mounted:
    """What opens: a Delta table's root with the version to ask for, or an Iceberg table's metadata.json."""

    location: str
    version: int


def mounted(
    points: Points, point: Point, table: str, version: int | None = None, say: Say = unsaid
) -> Mounted:
    """Where a table of a point opens in the store of its copies.

    A Delta table is at its copies; readers must ask for `version`, the log may go on behind it. For an Iceberg table
    metadata is written into the point's folder, which names the copies. That of the point is taken where it is still
    what was written.

    Raises:
        BackupError: the point does not hold the table whole.
    """
    choice = chosen(points, Wish(table, point.day, version))
    if choice.table.format == "delta":
        return Mounted(choice.copies.location(choice.table.stored_root), choice.version)
    mount, digest = choice.proof.mount, choice.proof.mount_digest
    if mount is not None and version in (None, choice.proof.snapshot_id):
        # Points of earlier releases have no digest of it.
        if digest is None or points.mount_digest(mount) == digest:
            return Mounted(mount, choice.version)
        say(f"The metadata at {mount} is not what was written; it is written anew.")
    return Mounted(_written(points, choice, say), choice.version)


def _written(points: Points, choice: Chosen, say: Say) -> str:
    source, key = points.backup.source, choice.proof.metadata_key
    if key is None:
        raise BackupError(
            f"table {choice.table.root}", "the point does not tell its metadata", "Use another point."
        )
    rows = choice.rows.select(["bucket", "key", "stored_key"]).to_pylist()
    new = {
        location(source, row["bucket"], row["key"]): choice.copies.location(row["stored_key"]) for row in rows
    }
    read = copies_of(choice, source)
    rewritten = rewrite_table(
        read,
        source.location(key),
        lambda at: new.get(normalised(at), at),
        points.store,
        f"{points.folder(choice.point.day)}mounts/{choice.version}/{choice.table.root}",
        whole_snapshots(read, source.location(key), lambda at: normalised(at) in new),
        current=choice.version,
        properties=MOUNTED,
    )
    say(f"{len(rewritten.keys):,} files of metadata written beside the point")
    return rewritten.metadata_location
