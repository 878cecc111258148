"""The finished matrix once more in a bucket: the same bytes under the same keys, absolute paths pointing there."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.builders.hostile.place import HostileTable

AT_ONCE = 8
PREFIX = "hostile"
LOCAL_ROOT = r"file:(?://)?{root}/"


def copied(
    tables: Mapping[str, HostileTable], folder: Path, client: Any, bucket: str
) -> dict[str, HostileTable]:
    """The tables of a matrix in a bucket; `folder` is where all of their files lie."""
    root = re.compile(LOCAL_ROOT.format(root=re.escape(str(folder))))
    # Spark's spelling of the scheme, since that is what Spark writes into logs.
    there = f"s3a://{bucket}/{PREFIX}/"

    def put(path: Path) -> None:
        content = path.read_bytes()
        if path.suffix == ".json":
            content = root.sub(there, content.decode()).encode()
        client.put_object(Bucket=bucket, Key=f"{PREFIX}/{path.relative_to(folder)}", Body=content)

    def put_in_turn(paths: list[Path]) -> None:
        for path in sorted(paths):
            put(path)

    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    logs: dict[Path, list[Path]] = {}
    for path in files:
        if path.parent.name == "_delta_log":
            logs.setdefault(path.parent, []).append(path)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(put, (path for path in files if path.parent not in logs)))
        # Commit by commit: a commit's time is that of its object.
        list(pool.map(put_in_turn, logs.values()))
    return {
        name: replace(table, location=f"s3://{bucket}/{PREFIX}/{Path(table.location).relative_to(folder)}")
        for name, table in tables.items()
    }
