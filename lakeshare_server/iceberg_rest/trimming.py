"""Large metadata files, reduced to the published snapshots in a process of its own.

Parsing 100 MB of JSON holds the interpreter for two seconds, in which no other request is answered. Run as a module,
this file is that process: the ids and the file on its input, the rest on its output. It imports nothing else of the
server, so that the process starts at once.
"""

import subprocess
import sys
from collections.abc import Collection
from typing import Any

import orjson

SMALL_BYTES = 1 << 19
MAX_TRIM_S = 300
# They grow with the table's history, and nothing of them is handed out.
OF_HISTORY = ("snapshot-log", "metadata-log", "refs", "statistics", "partition-statistics")


def trim_metadata(text: bytes, snapshot_ids: Collection[int]) -> Any:
    """A metadata file's content; of a large one the snapshots with the wanted ids only.

    Raises:
        ValueError: it is not whole, or took longer than five minutes.
    """
    if len(text) <= SMALL_BYTES:
        return orjson.loads(text)
    command = [sys.executable, "-P", "-m", __name__]
    ids = "\n".join(str(one) for one in snapshot_ids).encode()
    try:
        done = subprocess.run(
            command, input=ids + b"\n\n" + text, capture_output=True, timeout=MAX_TRIM_S, check=True
        )
    except subprocess.SubprocessError as error:
        raise ValueError(f"{len(text)} bytes of metadata could not be taken apart: {error}") from error
    return orjson.loads(done.stdout)


def trim_text(text: bytes, snapshot_ids: Collection[int]) -> bytes:
    """The file without what nobody gets.

    Raises:
        ValueError, AttributeError: it is not the JSON of a table.
    """
    metadata = orjson.loads(text)
    snapshots = metadata.get("snapshots") or ()
    kept = {name: value for name, value in metadata.items() if name not in OF_HISTORY}
    return orjson.dumps(
        {
            **kept,
            "snapshots": [snapshot for snapshot in snapshots if snapshot.get("snapshot-id") in snapshot_ids],
        }
    )


if __name__ == "__main__":
    ids, _, content = sys.stdin.buffer.read().partition(b"\n\n")
    sys.stdout.buffer.write(trim_text(content, {int(one) for one in ids.split()}))
