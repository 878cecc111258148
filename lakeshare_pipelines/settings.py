"""Settings of the pipelines: lake, Spark, Nessie, landing, alerts."""

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import AliasChoices, Field, SecretStr, model_validator

from lakeshare_server.locations import find_root
from lakeshare_server.settings import AbsolutePath, Endpoint, LakeLocation, StateSettings, StoreSettings

SHORT_RUNS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=256m"
"""Java options for a driver that starts quickly.

The first compiler level alone reserves 48 MB for code, which Spark exceeds; loading its classes triggers full
collections from 21 MB of metaspace.
"""


NESSIE = "nessie"
MAX_LINE_MB = 16
MAX_UNPACKED_MB = 51_200


class LakeSettings(StateSettings):
    """Settings from environment variables `LAKESHARE_<FIELD>` or from `.env`."""

    landing: LakeLocation | None = Field(
        None,
        validation_alias=AliasChoices("LAKESHARE_LANDING", "LAKESHARE_LANDING_S3", "LAKESHARE_LANDING_DIR"),
        description="Where deliveries arrive: a folder, or s3://bucket/prefix; `landing` in the state folder by "
        "default.",
    )
    landing_s3_endpoint: Endpoint | None = Field(
        None, description="URL of the S3 store of LANDING, where it is not S3_ENDPOINT."
    )
    landing_s3_region: str | None = Field(
        None,
        pattern=r"^[a-z0-9-]+$",
        description="Region of the bucket of LANDING, where it is not S3_REGION.",
    )
    contracts_dir: AbsolutePath | None = Field(
        None, description="Folder of contract YAML files; the sets that ship with the package by default."
    )
    cache_dir: AbsolutePath = Field(
        default_factory=lambda: (
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lakeshare"
        ),
        description="Folder of downloaded jars and archives of their classes, shared between projects.",
    )

    backups_file: AbsolutePath | None = Field(
        None, description="YAML of backups; the warehouse into `backups` in the state folder by default."
    )

    java_home: AbsolutePath | None = Field(None, description="Java to use; searched for by default.")
    maven_repository: str | None = Field(
        None, description="Maven repository to fetch jars from, instead of the public one."
    )
    offline: bool = Field(False, description="Fetch nothing: use only what the cache folder holds.")

    spark_mode: Literal["local", "connect", "cluster"] = Field(
        "local", description="Where Spark runs: in the run, behind Spark Connect, or on a cluster master."
    )
    spark_master: str = Field("local[*]", description="Master URL for modes local and cluster.")
    spark_remote: str | None = Field(None, description="sc:// URL for mode connect.")
    spark_conf: AbsolutePath | None = Field(
        None,
        description="File of Spark properties, as for spark-submit; they win over lakeshare's own, and lists are added "
        "to.",
    )
    spark_wait_s: int = Field(
        600,
        ge=1,
        description="How long a job on a cluster waits while the run has no executor, in seconds; then it fails.",
    )
    spark_driver_memory: str = Field("2g", description="Memory of the Spark driver.")
    spark_driver_options: str = Field(
        "", description=f"More Java options for the Spark driver; for short runs on few cores: {SHORT_RUNS}."
    )

    transform_wait_s: float = Field(
        3600,
        gt=0,
        description="How long a transform and the writing of its rows may take, in seconds; then its Spark jobs are "
        "cancelled and the run fails.",
    )

    iceberg_catalog: str = Field(
        NESSIE,
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        description="The catalog of Iceberg tables: nessie, or the name of a catalog in pyiceberg's configuration "
        "(.pyiceberg.yaml, or PYICEBERG_CATALOG__<NAME>__URI and more variables); it publishes one table at a time.",
    )
    nessie_uri: str | None = Field(
        None, description="An existing Nessie, as http(s)://host:port/api/v2; embedded one by default."
    )
    nessie_token: SecretStr | None = Field(None, description="Bearer token of the writer at NESSIE_URI.")
    nessie_publisher_token: SecretStr | None = Field(
        None, description="Bearer token of the publisher at NESSIE_URI; the writer's by default."
    )
    nessie_memory: str = Field("512m", description="Heap of the embedded Nessie.")

    quiet_s: int = Field(
        300, ge=0, description="A delivery without _SUCCESS counts as complete after this many quiet seconds."
    )
    show_rejected_values: bool = Field(
        False,
        description="Show rows that could not be read as they were delivered in verdicts and in Dagster, of tables "
        "without personal data; their file, line and reason by default.",
    )
    max_line_mb: int = Field(
        MAX_LINE_MB,
        ge=1,
        description="Longest line of a delivered text file, and longest value of one with fields over several lines, "
        "in MiB; Spark holds some ten times as much in memory.",
    )
    max_unpacked_mb: int = Field(
        MAX_UNPACKED_MB,
        ge=1,
        description="What one delivered compressed, Parquet or Avro file may unpack to, in MiB.",
    )
    replay_attempts: int = Field(4, ge=1, description="How often a conflicting publication is replayed.")
    branch_days: int = Field(
        14,
        ge=0,
        description="Age in days at which the janitor drops failed branches, and maintenance files that nothing uses.",
    )
    lock_wait_s: int = Field(120, ge=0, description="How long a publication waits for its set's lock.")

    slack_token: SecretStr | None = Field(None, description="Slack bot token; no token, no message.")
    slack_channel: str = Field("#lakeshare", description="Slack channel for failed audits.")
    slack_base_url: str | None = Field(None, description="Root of the Slack API, for a stand-in or a proxy.")
    dagster_url: str = Field("http://127.0.0.1:3000", description="Where the Dagster UI is, for links.")

    snowflake_account: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Snowflake account, as organisation-account; tables that contracts name are followed there.",
    )
    snowflake_url: Endpoint | None = Field(
        None, description="URL of Snowflake, for private links and stand-ins; the account's own by default."
    )
    snowflake_user: str | None = Field(None, description="User to log in to Snowflake as.")
    snowflake_password: SecretStr | None = Field(
        None, description="Password or programmatic access token of SNOWFLAKE_USER."
    )
    snowflake_private_key_file: AbsolutePath | None = Field(
        None, description="Private key of SNOWFLAKE_USER, a PEM file, instead of a password."
    )
    snowflake_private_key_passphrase: SecretStr | None = Field(
        None, description="Passphrase of SNOWFLAKE_PRIVATE_KEY_FILE."
    )
    snowflake_role: str | None = Field(None, description="Role to take in Snowflake; the user's by default.")
    snowflake_warehouse: str | None = Field(
        None, description="Snowflake's warehouse, which creating tables needs; the user's by default."
    )
    snowflake_external_volume: str | None = Field(
        None, description="Snowflake's external volume over the store of the tables."
    )
    snowflake_volume_location: str | None = Field(
        None, description="STORAGE_BASE_URL of that volume; the root of each table's store by default."
    )
    snowflake_iceberg_integration: str | None = Field(
        None, description="Snowflake's catalog integration for Iceberg files in object storage."
    )
    snowflake_delta_integration: str | None = Field(
        None, description="Snowflake's catalog integration for Delta files in object storage."
    )
    snowflake_login_s: int = Field(
        60, ge=1, description="How long a login to Snowflake is tried, in seconds."
    )

    @property
    def landing_root(self) -> str:
        """The location of deliveries, `<landing>/<set>/<partition>/…`, without a slash at its end."""
        return self.landing or str(self.state_dir / "landing")

    @property
    def landing_stores(self) -> StoreSettings:
        """The settings of the store of landing."""
        own = {"s3_endpoint": self.landing_s3_endpoint, "s3_region": self.landing_s3_region}
        return self.model_copy(update={name: value for name, value in own.items() if value is not None})

    @model_validator(mode="after")
    def _require_one_endpoint(self) -> Self:
        """Spark reaches a bucket by its name: one of a name cannot be at two endpoints."""
        buckets = [find_root(root) for root in (self.lake_root, self.landing_root)]
        endpoint = self.landing_stores.s3_endpoint
        if buckets[0] and buckets[0] == buckets[1] and endpoint != self.s3_endpoint:
            raise ValueError(
                f"LAKESHARE_LANDING and LAKESHARE_WAREHOUSE are in the bucket {buckets[0]}, at {endpoint} and at "
                f"{self.s3_endpoint}: name one endpoint, or give the bucket of one of them another name"
            )
        return self

    @property
    def logs_dir(self) -> Path:
        return self.state_dir / "logs"

    @property
    def runs_dir(self) -> Path:
        """Folder of the staged records and verdicts of runs."""
        return self.state_dir / "runs"
