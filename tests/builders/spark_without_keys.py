"""What Spark reads of tables in S3 without keys to the store, in a process of its own (apart.py)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import SPARK_JARS, ensure_jars
from lakeshare_pipelines.spark.session import make_session_conf, start_driver, stop_session


def read_without_keys(
    state_dir: Path, catalogs: Mapping[str, Mapping[str, str]], table: str, columns: str
) -> dict[str, list[tuple[Any, ...]]]:
    """What Spark reads of a table in S3 through each catalog, with Iceberg's client of S3 and no keys to the store."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        os.environ.pop(name, None)
    settings = LakeSettings(_env_file=None, state_dir=state_dir)
    jars = [str(jar) for jar in ensure_jars(settings, (*SPARK_JARS, "iceberg-aws-bundle")).values()]
    conf = make_session_conf(settings)
    conf |= {"spark.jars": ",".join(jars), "spark.driver.extraClassPath": os.pathsep.join(jars)}
    start_driver(settings, conf)
    session = SparkSession.builder.config(map=conf).getOrCreate()
    try:
        for name, options in catalogs.items():
            for key, value in options.items():
                session.conf.set(f"spark.sql.catalog.{name}{key}", value)
        return {
            name: sorted(tuple(row) for row in session.sql(f"SELECT {columns} FROM {name}.{table}").collect())
            for name in catalogs
        }
    finally:
        stop_session(session)
