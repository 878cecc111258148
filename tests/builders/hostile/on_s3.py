"""Tables of the matrix once more in a bucket: the same bytes under the same keys, absolute paths pointing there."""

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.builders.hostile.place import HostileTable

AT_ONCE = 8
BUCKET = "hostile"
PREFIX = "hostile"
# Spark's spelling of the scheme, since that is what Spark writes into logs.
THERE = f"s3a://{BUCKET}/{PREFIX}/"


def relocated(text: str, root: str) -> str:
    """A text in which the local root's URLs, with one or three slashes, are the bucket's."""
    return re.sub(f"file:(?://)?{re.escape(root)}/", THERE, text)


def copied(tables: Mapping[str, HostileTable], client: Any) -> dict[str, HostileTable]:
    """These tables of the matrix in a new bucket."""
    client.create_bucket(Bucket=BUCKET)
    [folder] = {Path(table.location).parent for table in tables.values()}
    names = {Path(table.location).name for table in tables.values()}

    def put(path: Path) -> None:
        content = path.read_bytes()
        if path.suffix == ".json":
            content = relocated(content.decode(), str(folder)).encode()
        client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{path.relative_to(folder)}", Body=content)

    def put_in_turn(paths: list[Path]) -> None:
        for path in sorted(paths):
            put(path)

    # A table's own folder, and those beside it: "vectors of dv_absolute".
    places = [place for place in folder.iterdir() if names & {place.name, place.name.rpartition(" of ")[2]}]
    found = (path for place in places for path in place.rglob("*"))
    files = [path for path in found if path.is_file() and not path.name.endswith(".crc")]
    moved = {
        path.parent for path in files if path.suffix == ".json" and str(folder) in path.read_text("utf-8")
    }
    # A clone's checkpoint names files by their URLs, too; its commits say the same.
    files = [path for path in files if path.parent not in moved or "checkpoint" not in path.name]
    logs: dict[Path, list[Path]] = {}
    for path in files:
        if path.parent.name == "_delta_log":
            logs.setdefault(path.parent, []).append(path)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(put, (path for path in files if path.parent not in logs)))
        # Commit by commit: a commit's time is that of its object.
        list(pool.map(put_in_turn, logs.values()))
    return {
        name: replace(table, location=f"s3://{BUCKET}/{PREFIX}/{Path(table.location).relative_to(folder)}")
        for name, table in tables.items()
    }
