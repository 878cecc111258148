"""The file lines of a snapshot: which files of an index answer a request, a batch at a time.

Files come from the index of one version. Memory is bounded by the batch, not by the table.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.protocol.file_lines import SnapshotLines
from lakeshare_server.protocol.signing import Sign
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.known_values import ZERO
from lakeshare_server.tables.predicate import EVERYTHING, Predicate
from lakeshare_server.tables.pruning import evaluate, live_rows

# Signed and sent at once: enough for the signer to be quick, little enough for the first byte to be.
PIECE_ROWS = 1000
# Of a batch of which less than one file in so many is wanted, little was read.
PARTS = 8


@dataclass
class Progress:
    """How far an answer has come; complete when the answer is."""

    files: int = 0
    size_bytes: int = 0
    # None where they are not counted: changes are told by files that hold rows of several kinds.
    rows: int | None = None
    # Where the next page begins, None when this was the last; and the rows it still has to find.
    next_place: int | None = None
    rows_wanted: int | None = None


@dataclass(frozen=True, kw_only=True)
class SnapshotAnswer:
    """Which files are wanted: from the place `start` of the index, at most `most`, and enough for `rows_wanted`."""

    index: FileIndex
    predicate: Predicate = EVERYTHING
    rows_wanted: int | None = None
    start: int = 0
    most: int | None = None

    def parts(self, lines: SnapshotLines, sign: Sign, progress: Progress) -> Iterator[bytes | memoryview]:
        """The file lines in pieces; an empty one for each batch of the index that made none."""
        for batch in _gathered(self._wanted(lines.columns, progress)):
            if batch is None:
                yield b""
                continue
            for start in range(0, batch.num_rows, PIECE_ROWS):
                piece = batch.slice(start, PIECE_ROWS)
                progress.files += piece.num_rows
                progress.size_bytes += pc.sum(piece.column("size"), min_count=0).as_py()
                progress.rows = (progress.rows or 0) + pc.sum(live_rows(piece), min_count=0).as_py()
                yield lines.of(piece, sign)

    def _wanted(self, columns: Sequence[str], progress: Progress) -> Iterator[pa.RecordBatch]:
        room, wanted = self.most, self.rows_wanted
        for begin, batch in self._from_start():
            if wanted is not None and wanted <= 0:
                return
            kept = self._kept(begin, batch, columns)
            if wanted is not None:
                kept = kept.filling(wanted)
            if room is not None and kept.files > room:
                progress.next_place = kept.place(room)
                kept = kept.first(room)
                progress.rows_wanted = None if wanted is None else wanted - kept.rows
                yield kept.batch
                return
            yield kept.batch
            if kept.files * PARTS > batch.num_rows:
                self.index.give_back(batch)
            room = None if room is None else room - kept.files
            wanted = None if wanted is None else wanted - kept.rows

    def _from_start(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        begin = 0
        for batch in self.index.batches():
            skipped = max(self.start - begin, 0)
            if skipped < batch.num_rows:
                yield begin + skipped, batch.slice(skipped)
            begin += batch.num_rows

    def _kept(self, begin: int, batch: pa.RecordBatch, columns: Sequence[str]) -> "_Kept":
        places = _numbers(begin, batch.num_rows) if self.most is not None else None
        if self.predicate == EVERYTHING:
            return _Kept(batch, places, live_rows(batch) if self.rows_wanted is not None else None)
        maybe = evaluate(self.predicate, batch)
        rows = None
        if self.rows_wanted is not None:
            # Only rows that surely pass the predicate fill the limit.
            rows = pc.if_else(maybe.surely_all, live_rows(batch), ZERO).filter(maybe.true)
        return _Kept(
            batch.select([*columns, *_counted(batch)]).filter(maybe.true),
            None if places is None else places.filter(maybe.true),
            rows,
        )


@dataclass(frozen=True)
class _Kept:
    """Files with their places in the index and the rows they surely add; both only when somebody asks."""

    batch: pa.RecordBatch
    places: pa.Array | None
    surely: pa.Array | None

    @property
    def files(self) -> int:
        return int(self.batch.num_rows)

    def place(self, number: int) -> int:
        """The place in the index of one of the files."""
        if self.places is None:
            raise AssertionError("places are kept when an answer is cut into pages")
        return int(self.places[number].as_py())

    @property
    def rows(self) -> int:
        return 0 if self.surely is None else pc.sum(self.surely, min_count=0).as_py()

    def first(self, files: int) -> "_Kept":
        return _Kept(
            self.batch.slice(0, files),
            None if self.places is None else self.places.slice(0, files),
            None if self.surely is None else self.surely.slice(0, files),
        )

    def filling(self, rows: int) -> "_Kept":
        """The files up to the one that fills a limit."""
        before = pc.subtract(pc.cumulative_sum(self.surely), self.surely)
        return self.first(pc.sum(pc.less(before, rows), min_count=0).as_py())


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | None]:
    """The files with small batches put together: what a predicate leaves of each is not worth a piece of its own.

    None where more is to be put to it first, so that looking through a large index can be left off on the way.
    """
    small: list[pa.RecordBatch] = []
    for batch in batches:
        if not small and batch.num_rows >= PIECE_ROWS:
            yield batch
            continue
        small.append(batch)
        if sum(one.num_rows for one in small) >= PIECE_ROWS:
            yield _together(small)
            small = []
        else:
            yield None
    if small:
        yield _together(small)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    whole = pa.Table.from_batches(batches).combine_chunks()
    return next(iter(whole.to_batches()), batches[0])


def _counted(batch: pa.RecordBatch) -> list[str]:
    """The columns that say how much is signed for."""
    return [name for name in ("size", "rows", "dv_cardinality") if name in batch.schema.names]


def _numbers(first: int, count: int) -> pa.Array:
    return pa.Int64Array.from_buffers(
        pa.int64(), count, [None, pa.py_buffer(array("q", range(first, first + count)))]
    )
