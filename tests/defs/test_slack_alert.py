"""A red audit tells Slack what failed, where it is kept and where to look; a Slack that is down changes nothing."""

from collections.abc import Iterator

import dagster as dg
import pytest

from lakeshare_pipelines.defs.wap import alert_failed_audit
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.staged import Staged, Verdict, Verdicts
from tests.builders.slack import SlackStandIn, slack_stand_in

STAGED = Staged("flights", "run-1", ("2013-01-04",), "wap-flights-2013-01-04-run1", "b", "h", (), {}, "c")
RED = Verdicts(
    STAGED.ref,
    "h",
    (
        Verdict(
            "flights.departures",
            "not_null__carrier",
            "error",
            False,
            "d",
            {"reason": "92 of 915 rows failed"},
        ),
        Verdict("flights.departures", "structure", "error", True, "d"),
    ),
    "c",
)


@pytest.fixture
def slack() -> Iterator[SlackStandIn]:
    with slack_stand_in() as server:
        yield server


def tell(**settings: str) -> None:
    alert_failed_audit(dg.build_op_context(), LakeSettings(_env_file=None, **settings), STAGED, RED)


def test_the_message_names_set_partition_rules_counts_place_and_run(slack):
    tell(slack_token="xoxb-1", slack_channel="#data", slack_base_url=slack.url)

    (message,) = slack.messages
    assert message["path"] == "/api/chat.postMessage"
    assert message["auth"] == "Bearer xoxb-1"
    assert message["channel"] == "#data"
    for part in ("flights 2013-01-04", "not_null__carrier: 92 of 915 rows failed", STAGED.ref, "/runs/"):
        assert part in message["text"]
    assert "structure" not in message["text"]


def test_without_a_token_nothing_is_sent(slack):
    tell(slack_base_url=slack.url)
    assert slack.messages == []


def test_a_slack_that_is_down_is_logged_and_changes_nothing(slack, capfd):
    url = slack.url
    slack.server_close()
    tell(slack_token="xoxb-1", slack_base_url=url)
    assert "Slack did not take the message" in capfd.readouterr().err
