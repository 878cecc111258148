"""Spark's view of Nessie: one catalog name per ref, added to a running session."""

import re
from typing import TYPE_CHECKING

from lakeshare_pipelines.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakeshare_pipelines.nessie.server import NessieEndpoint

MAIN_CATALOG = "lake"


def catalog_name(ref: str) -> str:
    """The Spark catalog of a ref: `lake` for main, the ref with `_` for what SQL forbids otherwise."""
    return MAIN_CATALOG if ref == "main" else re.sub(r"[^0-9A-Za-z]", "_", ref)


def catalog_conf(settings: LakeSettings, endpoint: "NessieEndpoint", ref: str) -> dict[str, str]:
    """Configuration of the Iceberg catalog at `ref`; Spark always carries the writer's token."""
    prefix = f"spark.sql.catalog.{catalog_name(ref)}"
    conf = {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        f"{prefix}.catalog-impl": "org.apache.iceberg.nessie.NessieCatalog",
        f"{prefix}.uri": endpoint.uri,
        f"{prefix}.ref": ref,
        # Not as_uri(): Hadoop takes the %20 of a quoted blank for three characters of the folder's name.
        f"{prefix}.warehouse": f"file://{settings.warehouse}",
        f"{prefix}.cache-enabled": "false",
    }
    if endpoint.writer_token:
        conf[f"{prefix}.authentication.type"] = "BEARER"
        conf[f"{prefix}.authentication.token"] = endpoint.writer_token
    return conf


def attach(spark: "SparkSession", settings: LakeSettings, endpoint: "NessieEndpoint", ref: str) -> str:
    """Add the catalog of `ref` to the session and return its name."""
    for key, value in catalog_conf(settings, endpoint, ref).items():
        spark.conf.set(key, value)
    return catalog_name(ref)
