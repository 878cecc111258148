"""Why files of an index are kept or left out: what each part of a predicate does, and what decided about each file."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.known_values import KnownValues
from lakeshare_server.tables.predicate import Predicate, all_of, conjuncts
from lakeshare_server.tables.predicate_text import text_of
from lakeshare_server.tables.pruning import batch_columns, evaluate, live_rows
from lakeshare_server.tables.reasons import Reasons, remark

KEPT = "may hold rows that match"
KEPT_WHOLE = "every row matches"
LIMIT_FILLED = "the files before it hold enough rows for the limit"


@dataclass(frozen=True)
class PartExplained:
    """One of the parts that must all be true; `drops` is how many files it leaves out by itself."""

    text: str
    drops: int
    remark: str | None


@dataclass(frozen=True)
class FileExplained:
    """One file; `rows` are those that readers see, None when nobody counted."""

    path: str
    is_kept: bool
    reason: str
    rows: int | None


@dataclass(frozen=True)
class Explanation:
    """What a predicate and a limit do to the files of an index.

    `rows` are those of the kept files; `uncounted` of these files have an unknown number of rows.
    """

    files: int
    kept: int
    beyond_limit: int
    rows: int
    uncounted: int
    parts: tuple[PartExplained, ...]

    @property
    def dropped(self) -> int:
        """Files that no part of the predicate, or the limit, leaves in."""
        return self.files - self.kept


def explain(index: FileIndex, predicate: Predicate, limit: int | None = None) -> Explanation:
    """What each part does, and what remains."""
    parts = list(conjuncts(predicate))
    drops = [0] * len(parts)
    files = kept = beyond = rows = uncounted = 0
    for batch, is_kept, is_within in _judged(index, all_of(parts), limit):
        files += batch.num_rows
        kept += is_within.true_count
        beyond += is_kept.true_count - is_within.true_count
        left = batch.filter(is_within)
        rows += pc.sum(live_rows(left), min_count=0).as_py()
        uncounted += left.column("rows").null_count
        for place, part in enumerate(parts):
            drops[place] += batch.num_rows - evaluate(part, batch).true.true_count
    first = next(index.batches(), None)
    said = [None if first is None else remark(part, _values(first)) for part in parts]
    explained = [
        PartExplained(text_of(part), count, None if count else why)
        for part, count, why in zip(parts, drops, said, strict=True)
    ]
    return Explanation(files, kept, beyond, rows, uncounted, tuple(explained))


def explained_files(
    index: FileIndex, predicate: Predicate, limit: int | None = None
) -> Iterator[FileExplained]:
    """Each file of the index in its order, and the first part that decided about it."""
    parts = list(conjuncts(predicate))
    prefix = index.header.location.rstrip("/") + "/"
    for batch, is_kept, is_within in _judged(index, all_of(parts), limit):
        sure = evaluate(all_of(parts), batch).surely_all
        deciding = _deciding(parts, batch)
        rows = pc.if_else(pc.is_valid(batch.column("rows")), live_rows(batch), None)
        for place in range(batch.num_rows):
            if is_within[place].as_py():
                reason = KEPT_WHOLE if sure[place].as_py() else KEPT
            elif is_kept[place].as_py():
                reason = LIMIT_FILLED
            else:
                reason = Reasons(batch.slice(place, 1)).why_never_true(parts[deciding[place]])
            path = batch.column("path")[place].as_py().removeprefix(prefix)
            yield FileExplained(path, is_within[place].as_py(), reason, rows[place].as_py())


def _judged(
    index: FileIndex, predicate: Predicate, limit: int | None
) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray, pa.BooleanArray]]:
    """Batches with the files that the predicate keeps, and those of them that the limit lets through."""
    filled = 0
    for batch in index.batches():
        maybe = evaluate(predicate, batch)
        if limit is None:
            yield batch, maybe.true, maybe.true
            continue
        sure = pc.if_else(pc.and_(maybe.true, maybe.surely_all), live_rows(batch), 0)
        before = pc.subtract(pc.cumulative_sum(sure, start=filled), sure)
        yield batch, maybe.true, pc.and_(maybe.true, pc.less(before, limit))
        filled += pc.sum(sure, min_count=0).as_py()


def _deciding(parts: list[Predicate], batch: pa.RecordBatch) -> list[int]:
    """The first part that drops each file, for those that are dropped."""
    deciding = [0] * batch.num_rows
    for number, part in reversed(list(enumerate(parts))):
        for place in pc.indices_nonzero(pc.invert(evaluate(part, batch).true)).to_pylist():
            deciding[place] = number
    return deciding


def _values(batch: pa.RecordBatch) -> KnownValues:
    return KnownValues(batch, batch_columns(batch))
