"""Reduces large metadata files to the published snapshots, in a process of its own.

Parsing 100 MB of JSON would block all other requests for two seconds. Run as a module, this file is that process: it
reads snapshot ids and the file, and writes the rest. It imports no other module of the server, to start fast.
"""

import subprocess
import sys
from collections.abc import Collection
from typing import Any

import orjson

SMALL_BYTES = 1 << 19
MAX_TRIM_S = 300
# Parts that grow with the table's history and are never published.
OF_HISTORY = ("snapshot-log", "metadata-log", "refs", "statistics", "partition-statistics")


def trim_metadata(text: bytes, snapshot_ids: Collection[int]) -> Any:
    """The content of a metadata file; of a large file only the snapshots with these ids. Raises ValueError."""
    if len(text) <= SMALL_BYTES:
        return orjson.loads(text)
    command = [sys.executable, "-P", "-m", __name__]
    ids = "\n".join(map(str, snapshot_ids)).encode()
    try:
        done = subprocess.run(
            command, input=ids + b"\n\n" + text, capture_output=True, timeout=MAX_TRIM_S, check=True
        )
    except subprocess.SubprocessError as error:
        raise ValueError(f"{len(text)} bytes of metadata could not be taken apart: {error}") from error
    return orjson.loads(done.stdout)


def trim_text(text: bytes, snapshot_ids: Collection[int]) -> bytes:
    metadata = orjson.loads(text)
    kept = {name: value for name, value in metadata.items() if name not in OF_HISTORY}
    snapshots = metadata.get("snapshots") or ()
    kept["snapshots"] = [snapshot for snapshot in snapshots if snapshot.get("snapshot-id") in snapshot_ids]
    return orjson.dumps(kept)


if __name__ == "__main__":
    ids, _, content = sys.stdin.buffer.read().partition(b"\n\n")
    sys.stdout.buffer.write(trim_text(content, set(map(int, ids.split()))))
