"""Every client that reads the matrix, and what became of it: rows, a refusal with its code, or its own limit."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import delta_sharing
import httpx
import pandas as pd
import pyarrow as pa
import requests

from tests.builders.canonical import Rows, same_frame, same_rows
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_rest import door_url, rest_catalog
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import Answer, ProtocolReader
from tests.builders.sharing import Running
from tests.builders.spark_iceberg import Filtered, as_delta_table, frame_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = ("python_parquet", "python_delta", "spark_delta", "pyiceberg", "spark_iceberg")
ROWS, OWN_LIMIT = "rows", "own-limit"
CODE = re.compile(r"\[([A-Z_]+)\]")


@dataclass(frozen=True)
class Outcome:
    """What a client made of a table: `cell` is `rows`, the code of a refusal, or `own-limit`; `said` is the reason."""

    cell: str
    said: str = ""


@dataclass(frozen=True)
class Clients:
    """All clients of one recipient."""

    server: Running
    token: str
    profile: Path
    client: httpx.Client
    data: httpx.Client
    spark: "SparkSession"
    folder: Path

    @classmethod
    def of(
        cls,
        server: Running,
        token: str,
        clients: tuple[httpx.Client, httpx.Client],
        spark: "SparkSession",
        folder: Path,
    ) -> "Clients":
        """The clients of the recipient with this token; Spark gets a catalog `door`."""
        conf = {
            "": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": door_url(server),
            ".token": token, ".warehouse": "flights", ".cache-enabled": "false",
        }  # fmt: skip
        for key, value in conf.items():
            spark.conf.set(f"spark.sql.catalog.door{key}", value)
        return cls(server, token, server.profile(token), *clients, spark, folder)

    def read(self, client: str, table: str, expected: Rows, some: Filtered = None) -> Outcome:
        """Let a client read a table, and compare what it reads with what Spark reads directly.

        Raises:
            AssertionError: it read other rows.
        """
        readers: dict[str, Callable[[str, Rows], None]] = {
            "python_parquet": lambda name, rows: self._python(name, rows, use_delta_format=False),
            "python_delta": lambda name, rows: self._python(name, rows, use_delta_format=True),
            "spark_delta": lambda name, rows: self._spark_delta(name, rows, some),
            "delta_answer": lambda name, rows: self._delta_answer(name, rows),
            "pyiceberg": self._pyiceberg,
            "spark_iceberg": self._spark_iceberg,
        }
        try:
            readers[client](table, expected)
        except requests.HTTPError as error:
            return _refused(error.response.text if error.response is not None else str(error))
        except _Refused as error:
            return _refused(str(error))
        except AssertionError:
            raise
        except Exception as error:
            return Outcome(OWN_LIMIT, f"{type(error).__name__}: {error}"[:500])
        return Outcome(ROWS)

    @cached_property
    def _rest_catalog(self) -> Any:
        return rest_catalog(self.server, self.token)

    def reader(self, table: str, fmt: Format = "delta") -> ProtocolReader:
        """Our own reader; in delta format it announces what Spark's connector does."""
        return ProtocolReader(self.client, f"flights.lake.{table}", fmt, self.data)

    def _python(self, table: str, expected: Rows, *, use_delta_format: bool) -> None:
        url = f"{self.profile}#flights.lake.{table}"
        frame: pd.DataFrame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=use_delta_format)
        assert sorted(frame.columns) == sorted(expected.names)
        # The parquet format tells partition columns last.
        same_frame(frame[expected.names], expected)

    def _spark_delta(self, table: str, expected: Rows, some: Filtered) -> None:
        """As Spark's connector does: the answer as a Delta table of one commit, with Spark's own data skipping."""
        answer = self._delta_answer(table, expected)
        frame = self.spark.read.format("delta").load(
            str(as_delta_table(self.reader(table), answer, self.folder / table))
        )
        same_rows(frame_rows(frame), expected, "Spark's Delta")
        if some is not None:
            where, rows = some
            same_rows(frame_rows(frame.where(where)), rows, f"Spark's Delta where {where}")

    def _delta_answer(self, table: str, expected: Rows) -> Answer:
        """The answer that Spark's connector gets, read by our own reader."""
        reader = self.reader(table)
        reply = self.client.post(f"{reader.path}/query", json={}, headers=reader.headers())
        if reply.status_code != 200:
            raise _Refused(reply.text)
        answer = reader.snapshot()
        same_rows(reader.rows(answer), expected, "our reader")
        return answer

    def _pyiceberg(self, table: str, expected: Rows) -> None:
        found = self._rest_catalog.load_table(f"lake.{table}").scan().to_arrow()
        same_rows(plain_rows(found, expected), expected, "PyIceberg")

    def _spark_iceberg(self, table: str, expected: Rows) -> None:
        same_rows(frame_rows(self.spark.table(f"door.lake.{table}")), expected, "Spark through the door")


def plain_rows(found: pa.Table, expected: Rows) -> Rows:
    """An Arrow table's rows as of the expected types."""
    assert found.column_names == expected.names
    lists = [found.column(place).to_pylist() for place in range(found.num_columns)]
    return Rows.of(expected.columns, zip(*lists, strict=True))


class _Refused(Exception):
    """The server's words."""


def _refused(said: str) -> Outcome:
    code = CODE.search(said)
    assert code is not None, f"a refusal without a code: {said}"
    leaks = [place for place in ("file:", "/metadata/", ".parquet", ".avro") if place in said]
    assert not leaks, f"recipients are told of {leaks}: {said}"
    return Outcome(code[1], said)
