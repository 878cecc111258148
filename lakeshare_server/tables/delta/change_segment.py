"""A segment of the index of changes: what a few dozen versions in a row changed, in one Arrow IPC file.

Its last batch has one row with a note about the versions: it is known only when all of them were read.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakeshare_server.tables.delta.change_rows import COLUMNS

NOTE = "note"
SCHEMA = pa.schema([*COLUMNS, (NOTE, pa.string())])
BATCH_ROWS = 16_000


@dataclass(frozen=True, kw_only=True)
class SegmentVersion:
    """What a segment knows of a version; `protocol` and `metadata` are JSON of the log, in force after its commit.

    `own_time_ms` is the time the commit tells itself; `fault` says why its changes cannot be told. A version of an
    Iceberg table has a `head` of its own, in JSON: what recipients are told. `feed_fault` says why its files are known,
    but not its changed rows.
    """

    version: int
    protocol: str
    metadata: str
    modified_ms: int
    own_time_ms: int | None
    first_row: int
    window_rows: int
    cdc_rows: int
    feed_rows: int
    window_bytes: int
    feed_bytes: int
    vectors: int
    lacks_row_ids: bool
    fault: str | None = None
    head: str | None = None
    feed_vectors: int = 0
    feed_fault: str | None = None

    @property
    def rows(self) -> int:
        """How many rows of the segment are of this version."""
        return self.window_rows + self.cdc_rows


@dataclass(frozen=True)
class SegmentNote:
    """The versions of a segment, as far as the log has them, and what `tables.locations` calls their roots.

    `made_of` says of changes of an Iceberg table which layout they have, and between which file indexes they are.
    """

    versions: dict[int, SegmentVersion] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    made_of: tuple[str, ...] = ()

    def as_json(self) -> str:
        """The note as text; each protocol and metadata once."""
        texts: dict[str, int] = {}
        versions = []
        for one in self.versions.values():
            places = [texts.setdefault(text, len(texts)) for text in (one.protocol, one.metadata)]
            versions.append({**asdict(one), "protocol": places[0], "metadata": places[1]})
        said = {"texts": list(texts), "versions": versions, "roots": self.roots, "made_of": self.made_of}
        return json.dumps(said)

    @classmethod
    def from_json(cls, text: str) -> "SegmentNote":
        """A note that `as_json` wrote."""
        said = json.loads(text)
        texts: list[str] = said["texts"]
        versions = [_version(one, texts) for one in said["versions"]]
        return cls({one.version: one for one in versions}, tuple(said["roots"]), tuple(said["made_of"]))


def _version(said: dict[str, Any], texts: list[str]) -> SegmentVersion:
    return SegmentVersion(
        **{**said, "protocol": texts[said["protocol"]], "metadata": texts[said["metadata"]]}
    )


class Segment:
    """An open segment. Batches are views into the mapped file."""

    def __init__(self, source: pa.MemoryMappedFile) -> None:
        self._reader = pa.ipc.open_file(source)
        last = self._reader.num_record_batches - 1
        self.note = SegmentNote.from_json(self._reader.get_batch(last).column(NOTE)[0].as_py())
        self._starts = [0]
        for number in range(last):
            self._starts.append(self._starts[-1] + self._reader.get_batch(number).num_rows)

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from one place to another, in batches."""
        number = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[number], min(self._starts[number + 1], stop)
            yield self._reader.get_batch(number).slice(start - begin, end - start)
            start, number = end, number + 1


class ChangedWords(Segment):
    """A segment whose rows go out in other words than it was written with."""

    def __init__(self, segment: Segment, said: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self.note = segment.note
        self.original, self._said = segment, said

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from one place to another, in batches."""
        return map(self._said, self.original.rows(start, stop))


def open_segment(path: Path) -> Segment:
    """Map a segment."""
    return Segment(pa.memory_map(str(path)))


class SegmentFile:
    """A segment while it is written: rows in batches, the note at the end."""

    def __init__(self, path: Path) -> None:
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, SCHEMA)
        self._waiting: list[pa.Table] = []

    def __enter__(self) -> "SegmentFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._sink.close()

    def add(self, rows: pa.Table) -> None:
        """Append rows; small pieces wait for others."""
        self._waiting.append(rows)
        if sum(table.num_rows for table in self._waiting) >= BATCH_ROWS:
            self._flush()

    def close(self, note: SegmentNote) -> None:
        """Write what waits, and the note."""
        self._flush()
        row: dict[str, Any] = {name: pa.nulls(1, kind) for name, kind in COLUMNS}
        row[NOTE] = pa.array([note.as_json()], pa.string())
        self._writer.write_table(pa.table(row, schema=SCHEMA))

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            rows = rows.append_column(NOTE, pa.nulls(rows.num_rows, pa.string())).combine_chunks()
            self._writer.write_table(rows, max_chunksize=BATCH_ROWS)
            self._waiting = []
