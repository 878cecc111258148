"""Tables and queries of databases, read by JDBC: all rows, or those after the last publication's watermark.

The watermark is the largest value of a column, as the database's own text of it: that is what is recorded, and what the
database compares with, so that no precision or time zone is lost on the way.
"""

import datetime as dt
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakeshare_pipelines.contracts.sources import JdbcSource
from lakeshare_pipelines.errors import SourceError
from lakeshare_pipelines.ingest.sources import Position, SourceContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DRIVER = "org.postgresql.Driver"
CAUSE = re.compile(r"(?:org\.postgresql\.util\.PSQLException|java\.sql\.\w+): (.*)")
NO_DRIVER = "ClassNotFoundException: org.postgresql.Driver"
CONNECT_S, SOCKET_S = 10, 3600
"""How long a connection may take, and a response of the database: the driver waits for ever by default."""


@dataclass(frozen=True)
class JdbcTable:
    """A table or query of a PostgreSQL database."""

    context: SourceContext
    entry: JdbcSource
    # Another statement sees other rows; all rows of a run are held.
    is_repeatable = False

    @property
    def identity(self) -> str:
        """The identity of what is read, for which a watermark holds; a database may move to another host."""
        parts = [self.entry.table, self.entry.query, self.entry.incremental]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def find_position(self, since: Position | None) -> Position:
        """Returns the time of reading, or the largest value of the incremental column.

        Raises:
            SourceError: that column has nulls, or only values below the last watermark.
        """
        column, entry = self.entry.incremental, self.entry
        if column is None:
            return {"read_at": dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")}
        before = self._get_watermark(since)
        name = _quote(column)
        upper = f"max({name})"
        if entry.lag_s:
            latest = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=entry.lag_s)
            upper = f"max(case when {name} <= {_literal(latest.isoformat())} then {name} end)"
        is_behind = (
            f"case when max({name}) < {_literal(before)} then 1 else 0 end" if before is not None else "0"
        )
        is_older = f"case when {upper} < {_literal(before)} then 1 else 0 end" if before is not None else "0"
        # Names of columns and watermarks are quoted; table and query are the contract's own SQL.
        selected = (
            f"cast({upper} as varchar(100)) as upper_bound, count(*) - count({name}) as nulls, "
            f"{is_behind} as is_behind, {is_older} as is_older, cast(max({name}) as varchar(100)) as largest"
        )
        statement = f"select {selected} from {self._from()}"  # noqa: S608
        [found] = self._load(statement).collect()
        if found["nulls"]:
            fix = "Fill them, or read a query with coalesce over that column: rows without a value would never be read."
            raise self.context.fail(
                f"{found['nulls']} rows have no value in the incremental column {column}", fix
            )
        if found["is_behind"]:
            reason = f"the largest {column} is {found['largest']}, and rows up to {before} are published"
            fix = (
                "The database seems to be restored to an earlier state. Roll the table back to the publication before "
                f"that state (`lakeshare rollback {self.context.table.name}`), or give it another physicalName to read "
                "all rows again."
            )
            raise self.context.fail(reason, fix)
        # An empty table has no new rows; neither has one whose new rows are younger than the lag.
        watermark = before if found["upper_bound"] is None or found["is_older"] else found["upper_bound"]
        return {"watermark": watermark, "of": self.identity}

    def read(self, since: Position | None, until: Position) -> "DataFrame":
        column, conditions = self.entry.incremental, []
        if column is not None:
            before, upper = self._get_watermark(since), until["watermark"]
            conditions = [f"{_quote(column)} <= {_literal(upper)}" if upper is not None else "1 = 0"]
            if before is not None:
                conditions.append(f"{_quote(column)} > {_literal(before)}")
        where = f" where {' and '.join(conditions)}" if conditions else ""
        statement = f"select * from {self._from()}{where}"  # noqa: S608
        return self._load(statement, self._find_ranges(statement))

    def _get_watermark(self, since: Position | None) -> str | None:
        """The watermark of the last publication; None if all rows are to be read.

        Raises:
            SourceError: it is that of another table, query or column, and the rows would be appended again.
        """
        if since is None:
            return None
        if since.get("of") != self.identity:
            if self.context.table.write.mode == "append":
                fix = "Undo the change, or give the table another physicalName to read all rows again."
                raise self.context.fail(
                    "its table, query or incremental column changed since it was read", fix
                )
            return None
        watermark: str | None = since["watermark"]
        return watermark

    def _from(self) -> str:
        query = self.entry.query
        # A query may end with a comment.
        return str(self.entry.table) if query is None else f"({query.rstrip().rstrip(';')}\n) source_rows"

    def _find_ranges(self, statement: str) -> Mapping[str, str]:
        """The options by which Spark reads by several connections."""
        column = self.entry.partition_by
        if column is None:
            return {}
        name = _quote(column)
        bounds = f"select cast(min({name}) as varchar(100)) as low, cast(max({name}) as varchar(100)) as high"
        [found] = self._load(f"{bounds} from ({statement}) ranged_rows").collect()
        if found["low"] is None:
            return {}
        number = str(self.entry.partitions)
        return {
            "partitionColumn": column,
            "lowerBound": found["low"],
            "upperBound": found["high"],
            "numPartitions": number,
        }

    def _load(self, statement: str, ranges: Mapping[str, str] | None = None) -> "DataFrame":
        options = {
            "driver": DRIVER,
            "url": self.entry.url,
            "dbtable": f"({statement}) q",
            "fetchsize": str(self.entry.fetch_rows),
            "connectTimeout": str(CONNECT_S),
            "socketTimeout": str(SOCKET_S),
            **(ranges or {}),
        }
        for option, variable in (("user", self.entry.user), ("password", self.entry.password)):
            if variable is not None:
                if variable not in os.environ:
                    fix = f"Set it where runs start, to the {option} of the database."
                    raise self.context.fail(f"the environment variable {variable} is not set", fix)
                options[option] = os.environ[variable]
        return self.context.spark.read.format("jdbc").options(**options).load()


def explain_error(context: SourceContext, error: BaseException) -> SourceError | None:
    """The error of a database or of its driver, without the password; None for other errors and sources."""
    entry = None if context.table.reads is None else context.table.reads.jdbc
    if entry is None:
        return None
    text = str(error)
    if NO_DRIVER in text:
        fix = "Restart the process of the run: it fetches the driver when a contract has a jdbc source."
        return context.fail("Spark runs without the driver of PostgreSQL", fix)
    found = CAUSE.search(text)
    if found is None:
        return None
    password = "" if entry.password is None else os.environ.get(entry.password, "")
    reason = found[1].strip().rstrip(".")
    reason = reason.replace(password, "***") if password else reason
    fix = "Check the database and the contract, and run again: nothing was published."
    return context.fail(f"the database refused the connection or the query, or ended: {reason}", fix)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
