"""Objects to copy, the rows of a plan for them, and the task: for engines on real stores."""

import datetime as dt
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_pipelines.backup.copy.engine import CopyTask
from lakeshare_pipelines.backup.model import COPIES, read_table
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from tests.builders.backup_keys import put_objects, read_objects
from tests.builders.backup_plan import plan_folder, planned

FOLDERS = (f"copies-{number}" for number in itertools.count(1))
AN_HOUR = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Copies:
    """A source with objects, an empty target, and a folder of this host for plans."""

    source: BackupStore
    target: BackupStore
    folder: Path

    def put(self, *keys: str, size_bytes: int = 100) -> None:
        """Objects whose content is made of their key."""
        contents = ((key, self.content(key, size_bytes)) for key in keys)
        if self.source.address.kind == "s3":
            put_objects(self.source.address, contents)
            return
        for key, content in contents:
            self.source.put(key, content)

    @staticmethod
    def content(key: str, size_bytes: int = 100) -> bytes:
        """What `put` puts."""
        return (f"{key} " * size_bytes).encode()[:size_bytes]

    def rows(self, changed: Callable[[str], dict[str, Any]] = lambda _: {}) -> list[dict[str, Any]]:
        """The rows of a plan for all objects there are, `changed` by their keys."""
        return [
            planned(
                one.key,
                **{
                    "bucket": self.source.address.bucket,
                    "size_bytes": one.size_bytes,
                    "etag": one.etag,
                    "last_modified": one.last_modified,
                    "stored_key": f"objects/{one.key}",
                    **changed(one.key),
                },
            )
            for one in self.source.list()
        ]

    def task(
        self,
        rows: Iterable[dict[str, Any]],
        *,
        as_of: dt.datetime | None = None,
        work_prefix: str = "work/",
        in_flight: int = 16,
        copy_limit_bytes: int = 5 * 1024**2,
    ) -> CopyTask:
        """A task that copies these rows; `as_of` is in an hour by default."""
        folder = self.folder / next(FOLDERS)
        folder.mkdir()
        return CopyTask(
            source=self.source.address,
            target=self.target.address,
            plan=plan_folder(folder / "plan", rows),
            done=folder / "done",
            work_prefix=work_prefix,
            as_of=as_of or dt.datetime.now(dt.UTC) + AN_HOUR,
            copy_limit_bytes=copy_limit_bytes,
            in_flight=in_flight,
        )

    def copied(self, prefix: str = "objects/") -> dict[str, bytes]:
        """What is in the target, by key."""
        keys = [one.key for one in self.target.list(prefix)]
        if self.target.address.kind == "s3":
            contents = read_objects(self.target.address, keys)
        else:
            contents = {key: self.target.read(key) for key in keys}
        return {key.removeprefix(prefix): content for key, content in contents.items()}


def buckets(client: Any, endpoint: str, region: str, folder: Path) -> Copies:
    """Two new buckets of an S3 server, by the keys that boto3 finds."""
    folder.mkdir(parents=True, exist_ok=True)
    stores = []
    for end in ("source", "target"):
        name = f"{next(FOLDERS)}-{end}"
        client.create_bucket(Bucket=name)
        stores.append(open_store(StoreAddress(url=f"s3://{name}", endpoint=endpoint, region=region)))
    return Copies(*stores, folder)


def done_of(task: CopyTask) -> dict[str, dict[str, Any]]:
    """What an engine left of a task: rows of schema DONE by key; each key is there once."""
    table: pa.Table = read_table(task.done, COPIES)
    rows = {row["key"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows, "a row is told twice"
    return rows
