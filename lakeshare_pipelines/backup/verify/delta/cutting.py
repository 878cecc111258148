"""Cutting a full copy at v*: what speaks of later versions goes, and the pointer is written afresh.

Only in the layout `dated`, whose copies belong to one point alone; in the other one tables open with a version.
"""

import orjson

from lakeshare_pipelines.backup.verify.delta.events import BrokenLogFile, sidecars_of
from lakeshare_pipelines.backup.verify.delta.log_files import LOG, SIDECARS, version_of
from lakeshare_pipelines.backup.verify.delta.table import DeltaAssessment, LogReader
from lakeshare_pipelines.backup.verify.table_copy import TableCopy

POINTER = "_last_checkpoint"


def cut(copy: TableCopy, assessed: DeltaAssessment, version: int) -> list[str]:
    """Remove commits, compactions, checkpoints with their sidecars and checksum files after a version from the copy.

    Returns their stored keys.
    """
    reader = LogReader(copy)
    folder = f"{copy.table.stored_root}/{LOG}/"
    listed = [one.key.removeprefix(folder) for one in copy.store.list(folder)]
    later = [name for name in listed if (of := version_of(name)) is not None and of > version]
    kept = _sidecars(assessed, reader, version)
    later += [name for name in listed if name.startswith(SIDECARS) and name not in kept]
    for name in later:
        copy.store.delete(folder + name)
    pointer = _pointer(assessed, version)
    if pointer is None:
        copy.store.delete(folder + POINTER)
    else:
        copy.store.put(folder + POINTER, orjson.dumps(pointer))
    return [folder + name for name in later]


def _sidecars(assessed: DeltaAssessment, reader: LogReader, version: int) -> set[str]:
    kept: set[str] = set()
    for at, checkpoints in assessed.log.checkpoints.items():
        for checkpoint in checkpoints if at <= version else ():
            try:
                kept.update(sidecars_of(checkpoint, reader.read))
            except BrokenLogFile:
                # A reader cannot use it either, so that it needs no sidecars.
                continue
    return kept


def _pointer(assessed: DeltaAssessment, version: int) -> dict[str, int] | None:
    """What `_last_checkpoint` says (PROTOCOL.md, "Last Checkpoint File"): the newest classic checkpoint there is."""
    for at in sorted((at for at in assessed.log.checkpoints if at <= version), reverse=True):
        count = assessed.counts.get(at)
        for checkpoint in assessed.log.checkpoints[at]:
            if not checkpoint.has_sidecars and count is not None:
                parts = {"parts": len(checkpoint.names)} if len(checkpoint.names) > 1 else {}
                # Its actions are the files, the protocol and the metadata; it is a hint.
                return {"version": at, "size": count.files + 2, **parts}
    return None
