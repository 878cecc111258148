"""References between tables of a set, on the tables as they will stand: a Spark anti-join each."""

from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts import Reference, Table
from lakeshare_pipelines.wap.samples import SAMPLE_ROWS, masked, sample_columns
from lakeshare_pipelines.wap.verdicts import Finding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def unmatched(table: Table, reference: Reference, rows: "DataFrame", target: "DataFrame") -> Finding:
    """Whether each row with all its reference columns set finds its counterpart in `target`."""
    from pyspark.sql import functions as F

    left, right = rows.alias("here"), target.select(*_quoted(reference.to_columns)).distinct().alias("there")
    pairs = list(zip(reference.columns, reference.to_columns, strict=True))
    referring = F.lit(True)
    matching = F.lit(True)
    for here, there in pairs:
        referring = referring & F.col(f"here.`{here}`").isNotNull()
        matching = matching & (F.col(f"here.`{here}`") == F.col(f"there.`{there}`"))
    with_reference = left.where(referring)
    orphans = with_reference.join(right, matching, "left_anti")
    failed = orphans.count()
    observed = {"failed_rows": failed, "columns": reference.columns, "refers_to": reference.to_table}
    if not failed:
        return Finding(True, observed)
    columns = sample_columns(table, reference.columns)
    samples = [row.asDict() for row in orphans.select(*_quoted(columns)).limit(SAMPLE_ROWS).collect()]
    reason = (
        f"{failed} rows have a {', '.join(reference.columns)} "
        f"that is no {', '.join(reference.to_columns)} of {reference.to_table}"
    )
    return Finding(False, {**observed, "reason": reason}, masked(table, samples, columns))


def _quoted(columns: "tuple[str, ...] | list[str]") -> list[str]:
    return [f"`{column}`" for column in columns]
