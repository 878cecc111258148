"""A table restored to a place of its own, where nothing was before."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow.compute as pc

from lakeshare_pipelines.backup.restore.chosen import Chosen
from lakeshare_pipelines.backup.restore.copied import read_whole
from lakeshare_pipelines.backup.restore.delta import write_pointer
from lakeshare_pipelines.backup.restore.opening import opened_delta, opened_iceberg
from lakeshare_pipelines.backup.restore.placed import Placed, placed, refuse_taken
from lakeshare_pipelines.backup.restore.records import RestoreRecord
from lakeshare_pipelines.backup.restore.work import Work
from lakeshare_pipelines.backup.rewriting import Rewritten, rewrite_table, whole_snapshots
from lakeshare_pipelines.backup.stores import StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError
from lakeshare_server.stores import normalised

WRITTEN_ANEW = r"(^|/)metadata/[^/]*(metadata\.json(\.gz)?|\.avro)$"
COPIED = "files"
"""Below the new root of an Iceberg table: its files as they were, beside the metadata that is written for them."""


def delta_elsewhere(work: Work) -> RestoreRecord:
    """A Delta table at a new root: its names are relative to it, so that copying is enough.

    Raises:
        BackupError: something else is there, or the table does not open.
    """
    copied_delta(work)
    return work.record(work.place, opened_delta(work.to, work.root, work.choice.version))


def iceberg_elsewhere(work: Work) -> RestoreRecord:
    """An Iceberg table at a new root, with metadata that names the new places.

    Raises:
        BackupError: something else is there, or the table does not open.
    """
    rewritten = copied_iceberg(work)
    location = rewritten.metadata_location
    return work.record(location, opened_iceberg(work.to, location, work.choice.version))


def new_places(work: Work) -> Callable[[str, str], tuple[str, str]]:
    """New bucket and key of an object by its original ones, at a place of its own."""
    root, to = work.choice.table.root, work.to.bucket
    folder = work.root if work.choice.table.format == "delta" else f"{work.root}/{COPIED}"

    def goes(bucket: str, key: str) -> tuple[str, str]:
        if bucket == work.choice.table.bucket:
            return to, f"{folder}/{key.removeprefix(root + '/')}"
        return to, f"{folder}/external/{bucket.strip('/')}/{key}"

    return goes


def brought(work: Work) -> Chosen:
    """What is copied to a place of its own: of an Iceberg table no metadata and no manifests, which are written anew.

    Left beside them, those of the original place would look like a table of their own.
    """
    if work.choice.table.format == "delta":
        return work.choice
    rows = work.choice.rows
    return replace(
        work.choice, rows=rows.filter(pc.invert(pc.match_substring_regex(rows["key"], WRITTEN_ANEW)))
    )


def copied_delta(work: Work) -> None:
    """Copy a Delta table to the work's root.

    Raises:
        BackupError: it has files outside of its root, which its log names by whole locations; something else is there.
    """
    root = work.choice.table.root
    outside = [key for key in work.choice.rows["key"].to_pylist() if not key.startswith(f"{root}/")]
    if outside:
        raise BackupError(
            f"table {root}",
            f"its log names files elsewhere, as {outside[0]}: at another place it would still read those",
            "Restore it in place.",
        )
    at = placed(work.choice, work.to, work.root, new_places(work))
    require_free(work, at)
    work.bring(at)
    write_pointer(work.store, work.root)


def copied_iceberg(work: Work) -> Rewritten:
    """Copy an Iceberg table to the work's root and write metadata for it.

    Raises:
        BackupError: something else is there, or a file of its metadata cannot be read.
    """
    choice, source = work.choice, work.backup.source
    if choice.proof.metadata_key is None:
        raise BackupError(
            f"table {choice.table.root}", "the point does not tell its metadata", "Use another point."
        )
    goes = new_places(work)
    at = placed(brought(work), work.to, work.root, goes)
    require_free(work, at)
    work.bring(at)
    held = {location(source, bucket, key): (bucket, key) for bucket, key in _keys(choice)}
    new = {old: work.to.location(goes(*at)[1]) for old, at in held.items()}
    read = copies_of(choice, source)
    rewritten = rewrite_table(
        read,
        source.location(choice.proof.metadata_key),
        work.moved(new),
        work.store,
        work.root,
        whole_snapshots(read, source.location(choice.proof.metadata_key), lambda one: normalised(one) in new),
        current=choice.version,
        tell=lambda done, of: work.say(f"{done:,} of {of:,} manifests rewritten") if done == of else None,
    )
    work.say(f"{len(rewritten.keys):,} files of metadata written for {work.place}")
    return rewritten


def copies_of(choice: Chosen, source: StoreAddress) -> Callable[[str], bytes]:
    """Reads a table's files by their original locations, from the copies; what was changed since is refused."""
    rows = choice.rows.select(["bucket", "key", "stored_key", "stored_version_id", "checksum"]).to_pylist()
    stored = {location(source, row["bucket"], row["key"]): row for row in rows}
    copies = open_store(choice.copies)

    def read(at: str) -> bytes:
        found = stored.get(normalised(at))
        if found is None:
            raise BackupError(at, f"point {choice.point.day} does not hold it", "Restore from another point.")
        return read_whole(choice, copies, found)

    return read


def location(source: StoreAddress, bucket: str, key: str) -> str:
    """An object's original location, in our spelling."""
    return normalised((source if bucket == source.bucket else source.at(bucket)).location(key))


def _keys(choice: Chosen) -> Iterator[tuple[str, str]]:
    return zip(choice.rows["bucket"].to_pylist(), choice.rows["key"].to_pylist(), strict=True)


def require_free(work: Work, at: Placed) -> None:
    """Refuse a place where something is that this restore did not write.

    Raises:
        BackupError: it names the first such object.
    """
    own = ("_delta_log/_last_checkpoint",) if work.choice.table.format == "delta" else ("metadata/",)
    others = [key for key in at.others if not key.removeprefix(f"{work.root}/").startswith(own)]
    refuse_taken(work.place, (*at.differing, *map(work.to.location, others)))
