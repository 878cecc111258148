"""Resources: Spark on dagster-pyspark with a life of its own, and the lake of one run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import PrivateAttr

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import make_session_conf, open_session, start_driver, stop_session
from lakeshare_pipelines.wap.staged import Lake, Staged, Verdicts
from lakeshare_server.catalog import Catalog, open_catalog

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource
    from pyspark.sql import SparkSession

S3_ATTEMPTS = 3


class SparkResource:
    """One Spark session per run: started when first used, stopped when the run ends.

    Local and cluster sessions are dagster-pyspark's `LazyPySparkResource` on a driver whose Java, jars and
    log file lakeshare chose; behind Spark Connect the session is a remote one.
    """

    def __init__(self) -> None:
        self._session: SparkSession | None = None

    def session(self) -> "SparkSession":
        """The run's session."""
        if self._session is None:
            self._session = _open_session(LakeSettings())
        return self._session

    def stop(self) -> None:
        """Stop the session, if the run came to need one."""
        if self._session is not None:
            stop_session(self._session)
            self._session = None


def _open_session(settings: LakeSettings) -> "SparkSession":
    if settings.spark_mode == "connect":
        return open_session(settings)
    # Imports pyspark: only here, so that loading the definitions stays cheap.
    from dagster_pyspark import LazyPySparkResource

    conf = make_session_conf(settings)
    start_driver(settings, conf)
    session: SparkSession = LazyPySparkResource(spark_config=conf).spark_session
    return session


def make_landing_store(settings: LakeSettings) -> "dict[str, S3Resource]":
    """The resource `s3`, when deliveries land in S3; credentials come the usual ways of AWS.

    With an endpoint boto3 addresses buckets by path, unless the machine's AWS configuration says virtual.
    """
    if settings.landing_s3 is None:
        return {}
    # Takes two seconds and five hundred modules: only those who land in S3 pay for it.
    from dagster_aws.s3 import S3Resource

    return {
        "s3": S3Resource(
            endpoint_url=settings.landing_s3_endpoint,
            region_name=settings.landing_s3_region,
            max_attempts=S3_ATTEMPTS,
        )
    }


class LakeResource(dg.ConfigurableResource[Any]):
    """The lake and its ledger, as a run sees them."""

    spark: dg.ResourceDependency[SparkResource]
    _lake: Lake | None = PrivateAttr(default=None)
    _catalog: Catalog | None = PrivateAttr(default=None)

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["LakeResource"]:
        """Stop Spark at the end of the run, however it ends."""
        try:
            yield self
        finally:
            self.spark.stop()

    def settings(self) -> LakeSettings:
        """The settings of this run."""
        return LakeSettings()

    def lake(self) -> Lake:
        """The run's lake; Spark and Nessie start when it first needs them."""
        if self._lake is None:
            self._lake = Lake(self.settings(), self.spark.session)
        return self._lake

    def catalog(self) -> Catalog:
        """The catalog and ledger."""
        if self._catalog is None:
            self._catalog = open_catalog(self.settings().catalog_url)
        return self._catalog


def alert_failed_audit(
    context: dg.OpExecutionContext, settings: LakeSettings, staged: Staged, verdicts: Verdicts
) -> None:
    """Post a red audit to Slack; without a token only the run's log has it."""
    send_alert(context, settings, format_failed_audit(staged, verdicts, run_url(settings, context.run_id)))


def send_alert(
    context: dg.OpExecutionContext | dg.AssetCheckExecutionContext, settings: LakeSettings, text: str
) -> None:
    """Log an alert as an error, and post it to Slack when a token is set.

    A message that cannot be delivered is logged as an error: what is red stays red for its own reason.
    """
    context.log.error(text)
    if settings.slack_token is None:
        return
    from dagster_slack import SlackResource
    from slack_sdk.errors import SlackClientError

    client = SlackResource(token=settings.slack_token.get_secret_value()).get_client()
    if settings.slack_base_url is not None:
        client.base_url = settings.slack_base_url.rstrip("/") + "/"
    try:
        client.chat_postMessage(channel=settings.slack_channel, text=text)
    except (SlackClientError, OSError):
        context.log.exception("Slack did not take the message; check LAKESHARE_SLACK_TOKEN and _CHANNEL.")


def run_url(settings: LakeSettings, run_id: str) -> str:
    """Where the UI shows a run."""
    return f"{settings.dagster_url.rstrip('/')}/runs/{run_id}"


def format_failed_audit(staged: Staged, verdicts: Verdicts, url: str) -> str:
    """What happened, to what, what to do: set, partition, failed rules with counts, where it is kept."""
    rules = "\n".join(f"• {verdict.name}: {verdict.reason}" for verdict in verdicts.failed)
    return (
        f"Audit of {staged.set_name} {staged.partition} failed; nothing was published.\n{rules}\n"
        f"Kept at {staged.ref}: `lakeshare wap show {staged.ref}`\n{url}"
    )
