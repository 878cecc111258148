"""What a delivery changes in a table with a key, as one frame of upserts and deletes against the table on main.

Staging applies the frame, each format in its own way. Nothing here reads or writes a table.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import SetContract, Table
from lakeshare_pipelines.contracts.model import IS_CURRENT, VALID_FROM, VALID_TO
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.spark.rows import column_by_name
from lakeshare_pipelines.wap.checks import MASK
from lakeshare_server.lazy import LazyModule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row
    from pyspark.sql import functions as F
else:
    F = LazyModule("pyspark.sql.functions")

DELETED, BEFORE, FILES = "__lakeshare_deleted", "__lakeshare_before", "__lakeshare_files"
"""Columns of planned changes: whether the row is deleted; main's row with its key, null if there is none; and the names
of the files that have rows with its key, where main was read with `ROW_FILE`."""
ROW_FILE = "__lakeshare_file"
"""The column with the name of a row's file."""
CHANGE_TYPE = "_change_type"
"""The column of Delta's change files (Delta protocol, "Add CDC File")."""
SHOWN_KEYS = 5
_NEW, _OLD, _ROW, _AT, _NEXT, _GONE, _DELIVERED, _RANK, _NULL, _REPEATED = (
    f"__lakeshare_{name}"
    for name in ("new", "old", "row", "at", "next", "gone", "delivered", "rank", "null", "repeated")
)


def plan_changes(
    contract: SetContract, table: Table, before: "DataFrame | None", rows: "DataFrame"
) -> "DataFrame":
    """The rows to insert, update and delete: the table's columns, `DELETED`, `BEFORE`; one row for each primary key.

    `before` is the table on main, and may have the column `ROW_FILE`: the changes then have `FILES`. `rows` are the
    delivered ones. Rows that change nothing are left out. The frame is computed at once, and is no longer a reading of
    the delivery, which a merge would refuse as not deterministic. Main is read once: its rows with delivered keys are
    held.

    Raises:
        ContractError: the delete condition is not valid Spark SQL.
    """
    rows = rows.withColumn(DELETED, _is_deleted(contract, table, rows))
    plan = _plan_versions if table.write.mode == "scd2" else _plan_merge
    if before is None:
        return plan(table, None, rows).localCheckpoint()
    stored = match_rows(align(table, before), rows, table.merge_key, "left_semi").persist()
    try:
        return plan(table, stored, rows).localCheckpoint()
    finally:
        stored.unpersist()


def align(table: Table, frame: "DataFrame") -> "DataFrame":
    """A state of the table in the columns of its contract, and `ROW_FILE` if it has it; new ones are null."""
    names = {name.lower(): name for name in frame.columns}
    columns = [
        (column_by_name(names[c.name.lower()]) if c.name.lower() in names else F.lit(None))
        .cast(c.type)
        .alias(c.name)
        for c in table.columns
    ]
    return frame.select(*columns, *_keep_files(frame))


def find_new_rows(
    before: "DataFrame | None", after: "DataFrame", file: str | None = None, position: str | None = None
) -> "DataFrame":
    """The rows of a state that an earlier one does not have as often.

    With `file`, the column with a row's file, files of both states are not compared; with `position`, that with its
    position in there, only those in which the same rows are left.
    """
    if before is None:
        return after
    columns = [column_by_name(name) for name in after.columns]
    known = {name.lower() for name in before.columns}
    then = [
        column_by_name(name) if name.lower() in known else F.lit(None).alias(name) for name in after.columns
    ]
    if file is None:
        return after.select(*columns).exceptAll(before.select(*then))
    files = F.col(file).alias(ROW_FILE)
    old_files, new_files = (frame.select(files).distinct() for frame in (before, after))
    if position is not None:
        left = F.count(position), F.bit_xor(F.xxhash64(position))
        old_rows, new_rows = (frame.groupBy(files).agg(*left) for frame in (before, after))
        old_files = new_files = old_rows.intersect(new_rows).select(ROW_FILE).localCheckpoint()
    added = after.select(*columns, files).join(old_files, ROW_FILE, "left_anti").drop(ROW_FILE)
    removed = before.select(*then, files).join(new_files, ROW_FILE, "left_anti").drop(ROW_FILE)
    return added.exceptAll(removed)


def match_rows(left: "DataFrame", right: "DataFrame", names: Iterable[str], how: str) -> "DataFrame":
    """Semi or anti join (`left_semi`, `left_anti`) by columns with these names; a null has no match."""
    left, right = left.alias("l"), right.alias("r")
    same = [F.col(f"l.`{name}`") == F.col(f"r.`{name}`") for name in names]
    return left.join(right, _all(same), how)


def compare_states(table: Table, before: "DataFrame", after: "DataFrame") -> "DataFrame":
    """The changes between two states of the table, or of some of its rows, in the form of `plan_changes`."""
    joined = _join_states(table, after, before, "full_outer")
    changed = joined.where(~F.col(_NEW).eqNullSafe(F.col(_OLD))).withColumn(_ROW, F.coalesce(_NEW, _OLD))
    is_deleted, files = F.col(_NEW).isNull().alias(DELETED), _keep_files(before)
    return _take_one(table, changed.select(f"{_ROW}.*", is_deleted, F.col(_OLD).alias(BEFORE), *files))


def list_change_rows(table: Table, changes: "DataFrame") -> "DataFrame":
    """The rows of change files for planned changes: images before and after, with `_change_type`."""
    is_deleted, is_known = F.col(DELETED), F.col(BEFORE).isNotNull()
    left = F.when(is_deleted, F.lit("delete")).otherwise(F.lit("update_preimage"))
    came = F.when(is_known, F.lit("update_postimage")).otherwise(F.lit("insert"))
    images = changes.where(is_known).select(f"{BEFORE}.*", left.alias(CHANGE_TYPE))
    columns = [column_by_name(column.name) for column in table.columns]
    return images.unionByName(changes.where(~is_deleted).select(*columns, came.alias(CHANGE_TYPE)))


def find_key_problems(table: Table, rows: "DataFrame") -> tuple[str, ...]:
    """Why delivered rows cannot be merged, one sentence for each kind of problem; empty if they can."""
    sequence = table.write.sequence
    names = [*table.merge_key, *([sequence] if sequence else [])]
    columns = [column_by_name(name) for name in names]
    row = F.struct(*(column_by_name(column.name) for column in table.columns))
    # With a sequence, a row that is delivered twice is one change.
    times = F.count_distinct(row) if sequence else F.count(F.lit(1))
    is_null = reduce(lambda left, right: left | right, (column.isNull() for column in columns))
    groups = rows.groupBy(*columns).agg((times > 1).alias(_REPEATED)).withColumn(_NULL, is_null)
    found = groups.where(F.col(_REPEATED) | F.col(_NULL))
    counted = found.agg(*(F.count_if(name).alias(name) for name in (_NULL, _REPEATED))).first()
    if counted is None or not any(counted):
        return ()
    same = "have different rows"
    if sequence is None:
        same = "have several rows: name a sequence that orders them, or deliver one row for each"
    problems = []
    for name, what in ((_NULL, "have a null"), (_REPEATED, same)):
        if counted[name]:
            examples = found.where(name).orderBy(*columns).limit(SHOWN_KEYS).collect()
            shown = _format_keys(table, names, examples)
            problems.append(f"{counted[name]} values of {', '.join(names)} {what} (such as {shown})")
    return tuple(problems)


def _format_keys(table: Table, names: Sequence[str], rows: "Iterable[Row]") -> str:
    """The values of columns as text, those with personal data masked."""
    masked = {column.name for column in table.columns if column.pii}
    return "; ".join(
        ", ".join(f"{name}={MASK if name in masked else row[name]}" for name in names) for row in rows
    )


def _is_deleted(contract: SetContract, table: Table, rows: "DataFrame") -> "Column":
    from pyspark.errors import AnalysisException, ParseException

    text = table.write.delete_when
    if text is None:
        return F.lit(False)
    try:
        # In parentheses no text can end the expression and begin another clause.
        condition = F.expr(f"({text})")
        _ = rows.where(condition).schema  # refuses what is no condition; Spark Connect analyses no earlier
    except (AnalysisException, ParseException) as error:
        raise ContractError(
            contract.path,
            f"{table.short_name}.write.deleteWhen",
            str(error).splitlines()[0].rstrip("."),
            f"It is a condition in Spark SQL over the columns of {table.short_name}.",
        ) from error
    return F.coalesce(condition, F.lit(False))


def _plan_merge(table: Table, before: "DataFrame | None", rows: "DataFrame") -> "DataFrame":
    sequence = table.write.sequence
    newest = [column_by_name(sequence).desc_nulls_last()] if sequence else []
    latest = _take_first(table, rows, table.merge_key, newest)
    if before is None:
        return latest.where(~F.col(DELETED)).withColumn(BEFORE, _no_row(table))
    joined = _join_states(table, latest, before, "left")
    is_known = F.col(_OLD).isNotNull()
    differs = ~F.col(_NEW).eqNullSafe(F.col(_OLD))
    changes = F.when(F.col(DELETED), is_known).otherwise(~is_known | differs)
    if sequence is not None:
        new, old = F.col(_NEW)[sequence], F.col(_OLD)[sequence]
        changes &= F.coalesce(new >= old, F.lit(True))
    files = _keep_files(before)
    return _take_one(
        table, joined.where(changes).select(f"{_NEW}.*", DELETED, F.col(_OLD).alias(BEFORE), *files)
    )


def _keep_files(frame: "DataFrame") -> list[str]:
    return [ROW_FILE] if ROW_FILE in frame.columns else []


def _take_one(table: Table, changes: "DataFrame") -> "DataFrame":
    """One change for each primary key, with the files of all.

    Main may have several rows with a key, if it was written otherwise before; the audit finds them.
    """
    if not _keep_files(changes):
        return changes.dropDuplicates(list(table.primary_key))
    key = [column_by_name(name) for name in table.primary_key]
    others = [column_by_name(name) for name in changes.columns if name not in (*table.primary_key, ROW_FILE)]
    grouped = changes.groupBy(*key).agg(
        F.first(F.struct(*others)).alias(_ROW), F.collect_set(ROW_FILE).alias(FILES)
    )
    return grouped.select(*key, f"{_ROW}.*", FILES)


def _plan_versions(table: Table, before: "DataFrame | None", rows: "DataFrame") -> "DataFrame":
    """The differences between the versions on main and those that all known events of the delivered keys make.

    An event is the begin of a version, or the end of one that no other follows. A delivered event takes the place of
    one on main with the same key and sequence value.
    """
    from pyspark.sql.window import Window

    key = [column_by_name(name) for name in table.merge_key]
    row = F.struct(*(column_by_name(column.name) for column in table.columns)).alias(_ROW)
    at = column_by_name(VALID_FROM).alias(_AT)
    events = rows.select(*key, at, row, F.col(DELETED).alias(_GONE), F.lit(True).alias(_DELIVERED))
    if before is not None:
        follows = F.lead(VALID_FROM).over(Window.partitionBy(*key).orderBy(VALID_FROM))
        begins = before.withColumn(_NEXT, follows)
        ends = begins.where(F.col(VALID_TO).isNotNull() & ~F.col(VALID_TO).eqNullSafe(F.col(_NEXT)))
        of_main = F.lit(False).alias(_DELIVERED)
        events = events.unionByName(before.select(*key, at, row, F.lit(False).alias(_GONE), of_main))
        end = F.col(VALID_TO).alias(_AT)
        events = events.unionByName(ends.select(*key, end, row, F.lit(True).alias(_GONE), of_main))
    first = [F.col(_DELIVERED).desc(), F.col(_GONE), F.xxhash64(_ROW)]
    rank = F.row_number().over(Window.partitionBy(*key, _AT).orderBy(*first))
    events = events.withColumn(_RANK, rank).where(F.col(_RANK) == 1)
    events = events.withColumn(_NEXT, F.lead(_AT).over(Window.partitionBy(*key).orderBy(_AT)))
    computed = {VALID_FROM: F.col(_AT), VALID_TO: F.col(_NEXT), IS_CURRENT: F.col(_NEXT).isNull()}
    values = [computed.get(c.name, F.col(_ROW)[c.name]).alias(c.name) for c in table.columns]
    versions = events.where(~F.col(_GONE)).select(*values)
    if before is None:
        return versions.select("*", F.lit(False).alias(DELETED), _no_row(table).alias(BEFORE))
    return compare_states(table, before, versions)


def _no_row(table: Table) -> "Column":
    fields = ", ".join(f"`{column.name}`: {column.type}" for column in table.columns)
    return F.lit(None).cast(f"struct<{fields}>")


def _take_first(
    table: Table, rows: "DataFrame", key: Sequence[str], order: "Sequence[Column]"
) -> "DataFrame":
    """One row for each key; which of equal ones does not depend on the order of reading."""
    from pyspark.sql.window import Window

    content = F.xxhash64(*(column_by_name(column.name) for column in table.columns))
    ranked = Window.partitionBy(*map(column_by_name, key)).orderBy(*order, content)
    return rows.withColumn(_RANK, F.row_number().over(ranked)).where(F.col(_RANK) == 1).drop(_RANK)


def _join_states(table: Table, new: "DataFrame", old: "DataFrame", how: str) -> "DataFrame":
    """Rows of two states with the same primary key beside each other, as structs; null where a state has none."""
    row = F.struct(*(column_by_name(column.name) for column in table.columns))
    others = [name for name in (DELETED,) if name in new.columns]
    left, right = new.select(row.alias(_NEW), *others), old.select(row.alias(_OLD), *_keep_files(old))
    same = [F.col(_NEW)[name].eqNullSafe(F.col(_OLD)[name]) for name in table.primary_key]
    return left.join(right, _all(same), how)


def _all(conditions: "Iterable[Column]") -> "Column":
    return reduce(lambda left, right: left & right, conditions)
