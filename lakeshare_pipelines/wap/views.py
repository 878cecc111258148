"""Views: the rows and columns of a table that one shows, and the proof that it shows nothing else.

What a view may say is judged with its contract; here it is Spark SQL over frames.
"""

from functools import reduce
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import PerRecipient, SetContract, Table, View
from lakeshare_pipelines.errors import ContractError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.verdicts import Finding

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from lakeshare_server.catalog import Ledger


def selected(contract: SetContract, table: Table, view: View, rows: "DataFrame") -> "DataFrame":
    """What a view shows of these rows of its table.

    Raises:
        ContractError: its predicate, or its value per recipient, is no Spark SQL over the table's columns.
    """
    from pyspark.errors import AnalysisException, ParseException

    part = "where"
    try:
        frame = rows if view.where is None else rows.where(_expression(view.where))
        _ = frame.schema  # Spark Connect analyses no earlier
        part = "perRecipient"
        frame = _of_somebody(frame, view)
        _ = frame.schema
    except (AnalysisException, ParseException) as error:
        raise ContractError(
            contract.path,
            f"{table.short_name}.view.{part}",
            str(error).splitlines()[0].rstrip("."),
            f"It is Spark SQL over the columns of {view.of}.",
        ) from error
    return frame.select(*(frame[column.name].cast(column.type) for column in table.columns))


def is_in_step(settings: LakeSettings, table: Table, view: View) -> bool:
    """Whether the newest publications of a view and of its table were made by one run.

    If not, the view was left out of the contract for a while, or one of the two was rolled back alone.
    """
    from lakeshare_server.catalog import Ledger, open_catalog

    catalog = open_catalog(settings.catalog_url)
    try:
        ledger = Ledger(catalog)
        runs = [_made_by(ledger, name) for name in (table.name, view.of)]
    finally:
        catalog.close()
    return runs[0] is not None and runs[0] == runs[1]


def _made_by(ledger: "Ledger", table: str) -> str | None:
    """The run that made what a table shows now; a rollback shows what another run made."""
    shown = ledger.latest(table)
    while shown is not None and shown.rollback_of is not None:
        shown = ledger.at(table, shown.rollback_of)
    return None if shown is None else shown.run_id


def selection(view: View, expected: "DataFrame", rows: "DataFrame", published_as: str | None) -> Finding:
    """Whether a view's rows are the expected ones, each as often; `published_as` is the digest of its definition."""
    wanted, found = _fingerprints(expected, rows)
    observed = {"of": view.of, "selected_rows": wanted[0], "rows": found[0], "definition": view.digest}
    if published_as != view.digest:
        reason = (
            "the contract defines it otherwise than it was published, and its earlier versions and changes would go on "
            "to show what it leaves out now. Give the changed view another physicalName and share that under the "
            "name recipients know ({table: …, name: …})"
        )
        return Finding(False, {**observed, "published_as": published_as, "reason": reason})
    if wanted == found:
        return Finding(True, observed)
    reason = (
        f"{found[0]} rows are staged and {wanted[0]} of {view.of} are selected, or not the same ones: one of the "
        "two was changed since it was written. `lakeshare wap retry` makes the view again"
    )
    return Finding(False, {**observed, "reason": reason})


def _expression(text: str) -> "Column":
    from pyspark.sql import functions as F

    # In parentheses no text can end the expression and begin another clause.
    return F.expr(f"({text})")


def _of_somebody(frame: "DataFrame", view: View) -> "DataFrame":
    """The rows that are somebody's, once for each whose they are, with the column that tells it."""
    from pyspark.sql import functions as F

    per = view.per_recipient
    columns = [F.col(f"`{name}`") for name in view.columns]
    if per is None:
        return frame.select(*columns)
    if per.value is None:
        frame = frame.select(*columns)
    else:
        frame = frame.select(*columns, _whose(frame, per, per.value).alias(per.column))
    whose = F.col(f"`{per.column}`")
    # Formats take an empty text in a partition for none.
    return frame.where(whose.isNotNull() & (whose.cast("string") != ""))


def _whose(frame: "DataFrame", per: PerRecipient, value: str) -> "Column":
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    whose = _expression(value)
    kind = frame.select(whose.alias(per.column)).schema[0].dataType
    if isinstance(kind, T.ArrayType):
        # Distinct as texts: two values that read the same are one recipient's.
        return F.explode(F.array_distinct(whose.cast("array<string>")))
    return whose.cast("string")


def _fingerprints(*frames: "DataFrame") -> list[tuple[int, int]]:
    """Of each frame the number of rows, and a sum over them that is another one for other rows, in whatever order."""
    from pyspark.sql import functions as F

    sums = []
    for number, frame in enumerate(frames):
        columns = [F.col(f"`{name}`") for name in frame.columns]
        # A hash passes over nulls: without their places (null, a) and (a, null) would be the same.
        row = F.xxhash64(*columns, *(column.isNull() for column in columns)).cast("decimal(38,0)")
        sums.append(
            frame.agg(F.lit(number).alias("frame"), F.count("*").alias("rows"), F.sum(row).alias("sum"))
        )
    found = {row["frame"]: row for row in reduce(lambda one, other: one.unionByName(other), sums).collect()}
    return [(int(found[number]["rows"]), int(found[number]["sum"] or 0)) for number in range(len(frames))]
