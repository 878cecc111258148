"""Rewriting a staged Iceberg table until the clients it is promised to can read it, by Iceberg's own procedure.

The branch is the only thing that changes: what is audited and published is the rewritten state.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from lakeshare_pipelines.wap.rewrites import Rewrite, codes_in_the_way, rewrite_for
from lakeshare_server.tables.serveability import Verdict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def made_serveable(
    spark: "SparkSession",
    target: str,
    promised: Collection[str],
    verdicts: Callable[[], Iterable[Verdict]],
) -> tuple[str, ...]:
    """Rewrite a table, named with its catalog, as long as that helps; returns the reason codes that it took away.

    `verdicts` reads the table's newest state. A table of several troubles may show the second only when the first is
    gone; none is tried twice.
    """
    tried: frozenset[str] = frozenset()
    while new := (found := codes_in_the_way(promised, verdicts())) - tried:
        _rewrite(spark, target, rewrite_for(new), new)
        tried |= new
    if found:
        log.warning("%s was rewritten, and still has %s", target, ", ".join(sorted(found)))
    return tuple(sorted(str(code) for code in tried - found))


def _rewrite(spark: "SparkSession", target: str, rewrite: Rewrite, codes: Iterable[str]) -> None:
    log.info("rewriting files of %s for its clients: %s", target, ", ".join(sorted(codes)))
    began = time.monotonic()
    if rewrite.properties:
        spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({_pairs(rewrite.properties, ' = ')})")
    catalog = target.split(".", 1)[0]
    [done] = spark.sql(
        f"CALL {catalog}.system.rewrite_data_files(table => '{target}', "
        f"options => map({_pairs(rewrite.options, ', ')}))"
    ).collect()
    log.info(
        "rewrote %s files of %s, %s bytes, into %s in %.1f s",
        *(done.rewritten_data_files_count, target, done.rewritten_bytes_count),
        *(done.added_data_files_count, time.monotonic() - began),
    )


def _pairs(texts: Mapping[str, str], between: str) -> str:
    return ", ".join(f"'{key}'{between}'{value}'" for key, value in texts.items())
