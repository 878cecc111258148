"""What a step may touch: the settings, one Spark session, Nessie as writer or as publisher."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.nessie.client import Nessie
from lakeshare_pipelines.nessie.server import NessieEndpoint, ensure_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.catalogs import attach
from lakeshare_pipelines.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Lake:
    """The lake of one run. Spark and Nessie start when first used."""

    def __init__(self, settings: LakeSettings, open_spark: "Callable[[], SparkSession]") -> None:
        self.settings = settings
        self._open_spark = open_spark

    @cached_property
    def spark(self) -> "SparkSession":
        """The run's Spark session."""
        return self._open_spark()

    @cached_property
    def endpoint(self) -> NessieEndpoint:
        """Where Nessie is; the embedded one is started when nobody has."""
        return ensure_nessie(self.settings)

    def nessie(self, role: Literal["writer", "publisher"] = "writer") -> Nessie:
        """A Nessie client. Only the publish step asks for the publisher."""
        return Nessie.connect(self.endpoint, role)

    def catalog(self, ref: str) -> str:
        """Name of the Spark catalog at `ref`, added to the session."""
        return attach(self.spark, self.settings, self.endpoint, ref)

    def table(self, name: str, ref: str = "main") -> "DataFrame":
        """An Iceberg table at a ref."""
        return self.spark.table(f"{self.catalog(ref)}.{name}")


def without_spark(settings: LakeSettings) -> Lake:
    """A lake for work on records and catalogs; asking it for Spark is a mistake in the caller.

    Raises:
        SparkError: when Spark is asked for.
    """

    def refuse() -> "SparkSession":
        raise SparkError("this step was given no Spark", "open the lake with `with_spark`")

    return Lake(settings, refuse)


@contextmanager
def with_spark(settings: LakeSettings) -> Iterator[Lake]:
    """A lake whose session is started at first use and stopped at the end of the block."""
    with ExitStack() as stack:
        yield Lake(settings, lambda: stack.enter_context(spark_session(settings)))
