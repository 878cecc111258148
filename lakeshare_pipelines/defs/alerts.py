"""Alerts: a red audit or a failed drill goes to Slack when a token is set."""

import dagster as dg

from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdicts


def tell_red(
    context: dg.OpExecutionContext, settings: LakeSettings, staged: Staged, verdicts: Verdicts
) -> None:
    """Post a red audit to Slack; without a token only the run's log has it."""
    tell(context, settings, red_message(staged, verdicts, run_url(settings, context.run_id)))


def tell(
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


def red_message(staged: Staged, verdicts: Verdicts, url: str) -> str:
    """What happened, to what, what to do: set, partition, failed rules with counts, where it is kept."""
    rules = "\n".join(f"• {verdict.name}: {verdict.reason}" for verdict in verdicts.failed)
    return (
        f"Audit of {staged.set_name} {staged.partition} failed; nothing was published.\n{rules}\n"
        f"Kept at {staged.ref}: `lakeshare wap show {staged.ref}`\n{url}"
    )
