"""A Delta table brought back: made whole where it was, put back by a commit where its log went on, or put elsewhere."""

import io
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import pyarrow as pa

from lakeshare_pipelines.backup.restore.selection import LOG
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.stores.store import make_storage_options
from lakeshare_pipelines.errors import BackupError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

POINTER = "_last_checkpoint"
COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.\d{10}\.(\d{10}))?\.parquet")
Add: TypeAlias = dict[str, Any]  # an `add` action, as the log has it


def list_log_names(store: BackupStore, root: str) -> list[str]:
    """Names below the folder of a table's log; none when there is no log."""
    folder = _folder(root)
    return [one.key.removeprefix(folder) for one in store.list(folder)]


def find_newest_commit(names: list[str]) -> int | None:
    """The newest version of a log; None when it has no commit."""
    return max((int(match[1]) for name in names if (match := COMMIT.fullmatch(name))), default=None)


def require_contiguous_commits(place: str, names: list[str], version: int) -> None:
    """Refuse a log whose commits after a version do not follow each other: nothing can be committed to it.

    Raises:
        BackupError: one is missing.
    """
    found = {int(match[1]) for name in names if (match := COMMIT.fullmatch(name))}
    for expected in range(version + 1, max(found, default=version)):
        if expected not in found:
            raise BackupError(
                place,
                f"its log has newer commits, but not {expected}: nothing can be committed to it",
                "Restore it to another place with --to; nothing was changed here.",
            )


def write_pointer(store: BackupStore, root: str) -> None:
    """Write `_last_checkpoint` (Delta PROTOCOL.md, "Last Checkpoint File") unless it holds."""
    names = list_log_names(store, root)
    folder = _folder(root)
    newest = _newest_checkpoint(names, find_newest_commit(names) or 0)
    if POINTER in names and _parse_pointer(store.read(folder + POINTER)) in _checkpoints(names):
        return
    if newest is None:
        # A pointer to what is not there keeps readers from the table.
        store.delete(folder + POINTER)
        return
    version, parts = newest
    size = sum(_rows(store, folder + name) for name in parts)
    pointer = {"version": version, "size": size} | ({"parts": len(parts)} if len(parts) > 1 else {})
    store.put(folder + POINTER, json.dumps(pointer).encode())


def commit_restore(address: StoreAddress, root: str, version: int, properties: Mapping[str, str]) -> int:
    """Commit that a table shows an older version again (Delta's RESTORE); returns the version that does.

    A table that shows its files already gets no commit.

    Raises:
        BackupError: somebody committed meanwhile, or delta-rs does not write such a table.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import CommitProperties

    location = address.location(root)
    try:
        table = DeltaTable(location, storage_options=make_storage_options(address) or None)
        then = DeltaTable(location, version, storage_options=make_storage_options(address) or None)
        if _state(table) == _state(then):
            return table.version()
        commit = CommitProperties(custom_metadata=dict(properties), max_commit_retries=0)
        table.restore(version, commit_properties=commit)
    except DeltaError as error:
        raise _make_commit_error(location, error) from error
    return int(table.version())


def commit_takeover(
    address: StoreAddress, root: str, beside: str, version: int, properties: Mapping[str, str]
) -> int:
    """Commit that a live table has the files of another one below its root, and no others; returns the new version.

    Raises:
        BackupError: their columns differ, rows of the other are deleted by vectors, or somebody committed meanwhile.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import CommitProperties

    location, options = address.location(root), make_storage_options(address) or None
    try:
        live, other = (
            DeltaTable(location, storage_options=options),
            DeltaTable(address.location(beside), version, storage_options=options),
        )
        adds = read_live_adds(open_store(address), beside, version)
        _require_like(location, live, other, adds)
        live.create_write_transaction(
            [_make_add_action(beside.removeprefix(f"{root}/"), add) for add in adds.values()],
            "overwrite",
            other.schema(),
            other.metadata().partition_columns,
            commit_properties=CommitProperties(custom_metadata=dict(properties), max_commit_retries=0),
        )
    except DeltaError as error:
        raise _make_commit_error(location, error) from error
    return int(DeltaTable(location, storage_options=options).version())


def skip_versions(
    address: StoreAddress, root: str, newest: int, last: int, properties: Mapping[str, str]
) -> int:
    """Let a log go on behind version `last` without a change; returns the version after it, which has `properties`.

    Raises:
        BackupError: somebody committed meanwhile.
    """
    for version in range(newest + 1, last + 2):
        commit_info: dict[str, Any] = {
            "timestamp": int(time.time() * 1000),
            "operation": "RESTORE",
            "isBlindAppend": False,
        }
        commit_info |= {"operationParameters": {"version": str(newest)}, "engineInfo": "lakeshare"}
        if version > last:
            commit_info |= properties
        put_commit(address, root, version, [{"commitInfo": commit_info}])
    return last + 1


def put_commit(address: StoreAddress, root: str, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    """Write a commit, unless somebody else has written it (Delta PROTOCOL.md, "Delta Log Entries").

    Raises:
        BackupError: somebody has.
    """
    lines = "".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions)
    key = f"{_folder(root)}{version:020}.json"
    if not open_store(address).put(key, lines.encode(), if_absent=True):
        place = address.location(root)
        raise BackupError(place, f"somebody committed version {version} meanwhile", "Run the restore again.")


def read_live_adds(store: BackupStore, root: str, version: int) -> dict[tuple[str, str | None], Add]:
    """The `add` actions that make a table at a version, by path and deletion vector, as its log has them.

    Raises:
        BackupError: only a checkpoint of another kind than a classic one leads to that version.
    """
    import pyarrow.parquet as pq

    names = list_log_names(store, root)
    folder = _folder(root)
    newest = _newest_checkpoint(names, version)
    adds: dict[tuple[str, str | None], Add] = {}
    first = 0
    if newest is not None:
        first = newest[0] + 1
        for name in newest[1]:
            table = pq.read_table(io.BytesIO(store.read(folder + name)), columns=["add"])
            for add in table.column("add").drop_null().to_pylist():
                adds[_identity(add)] = {**add, "partitionValues": dict(add["partitionValues"] or ())}
    present = set(names)
    for number in range(first, version + 1):
        name = f"{number:020}.json"
        if name not in present:
            raise BackupError(
                f"{store.address.location(root)} at version {version}",
                f"its log cannot be read here: commit {number} is not there, nor a classic checkpoint after it",
                "Restore the whole table instead.",
            )
        for line in store.read(folder + name).splitlines():
            _apply(adds, json.loads(line))
    return adds


def _state(table: "DeltaTable") -> tuple[object, ...]:
    metadata = table.metadata()
    vectors = pa.table(table.deletion_vectors().read_all()).to_pylist() if _has_vectors(table) else []
    return sorted(table.file_uris()), table.schema().to_json(), metadata.partition_columns, repr(vectors)


def _has_vectors(table: "DeltaTable") -> bool:
    return "deletionVectors" in (table.protocol().reader_features or ())


def _require_like(location: str, live: "DeltaTable", other: "DeltaTable", adds: Mapping[Any, Add]) -> None:
    same = live.schema().to_json() == other.schema().to_json()
    if not same or live.metadata().partition_columns != other.metadata().partition_columns:
        raise BackupError(
            location, "a table of other columns is there now", "Restore it to another place with --to."
        )
    if any(add.get("deletionVector") for add in adds.values()):
        raise BackupError(
            location,
            "another table is there now, and the restored one has deletion vectors",
            "Restore it to another place with --to.",
        )


def _make_add_action(folder: str, add: Add) -> "AddAction":
    from deltalake.transaction import AddAction

    return AddAction(
        # The log holds the path percent-encoded; AddAction encodes what it is given.
        f"{folder}/{unquote(add['path'])}",
        add["size"],
        add["partitionValues"],
        add["modificationTime"],
        True,
        add.get("stats") or "{}",
    )


def _make_commit_error(location: str, error: Exception) -> BackupError:
    reason = str(error).splitlines()[0]
    fix = "Run the restore again, or restore to another place with --to."
    return BackupError(location, f"the restored state could not be committed: {reason}", fix)


def _apply(adds: dict[tuple[str, str | None], Add], action: Mapping[str, Any]) -> None:
    if "remove" in action:
        adds.pop(_identity(action["remove"]), None)
    if "add" in action:
        adds[_identity(action["add"])] = action["add"]


def _identity(action: Mapping[str, Any]) -> tuple[str, str | None]:
    vector = action.get("deletionVector")
    return action[
        "path"
    ], None if vector is None else f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset')}"


def _checkpoints(names: list[str]) -> dict[int, list[str]]:
    """Whole classic checkpoints by version: one file, or all parts of one."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in sorted(names):
        if match := CHECKPOINT.fullmatch(name):
            found.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
    return {version: parts for (version, of), parts in sorted(found.items()) if len(parts) == of}


def _newest_checkpoint(names: list[str], version: int) -> tuple[int, list[str]] | None:
    whole = {at: parts for at, parts in _checkpoints(names).items() if at <= version}
    return (max(whole), whole[max(whole)]) if whole else None


def _parse_pointer(content: bytes) -> int | None:
    try:
        pointer = json.loads(content)
    except ValueError:
        return None
    return pointer.get("version") if isinstance(pointer, dict) else None


def _rows(store: BackupStore, key: str) -> int:
    import pyarrow.parquet as pq

    with store.open(key) as file:
        rows: int = pq.read_metadata(file).num_rows
        return rows


def _folder(root: str) -> str:
    return f"{root}{LOG}".lstrip("/")
