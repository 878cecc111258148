"""A Spark driver that several processes of a test use, as a JVM of their own costs each of them ten seconds."""

import os
from dataclasses import dataclass
from typing import Any, Self

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession


@dataclass(frozen=True)
class SharedSpark:
    """Port and secret of the gateway of a running driver."""

    port: int
    secret: str

    @classmethod
    def of(cls, session: SparkSession) -> Self:
        """The driver of a session of this process."""
        parameters = _gateway(session).java_parameters
        return cls(parameters.port, parameters.auth_token)

    def attach(self) -> SparkSession:
        """Open a session of its own in the driver, for a process that has no Spark yet. Never stop it."""
        address = {"PYSPARK_GATEWAY_PORT": str(self.port), "PYSPARK_GATEWAY_SECRET": self.secret}
        os.environ.update(address)
        gateway = launch_gateway()
        SparkContext._ensure_initialized(gateway=gateway)
        running_context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
        java_context = gateway.jvm.JavaSparkContext.fromSparkContext(running_context)
        conf = SparkConf(_jconf=java_context.getConf())
        context = SparkContext(gateway=gateway, jsc=java_context, conf=conf)
        sessions = SparkSession._get_j_spark_session_class(gateway.jvm)
        running = sessions.getDefaultSession().get()
        session = SparkSession(context, jsparkSession=running.newSession())
        # PySpark made the new session the driver's default.
        sessions.setDefaultSession(running)
        return session


def forget_cached(session: SparkSession) -> None:
    """Drop what the driver holds in memory, as the end of a killed process's own driver would have."""
    session.catalog.clearCache()
    _gateway(session).jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _gateway(session: SparkSession) -> Any:
    return session.sparkContext._gateway
