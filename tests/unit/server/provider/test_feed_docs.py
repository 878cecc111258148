"""The code on the page of feeds and webhooks works as it is printed, and the page names every command and setting."""

import re
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakeshare_server.cli.webhooks import webhook_app
from lakeshare_server.provider.webhooks import sign_event
from lakeshare_server.settings import ServerSettings

PAGE = (Path(__file__).parents[4] / "docs/feed.md").read_text()
SECRETS = ("whsec_c2VjcmV0IG9uZQ==", "whsec_c2VjcmV0IHR3bw==")
BODY = b'{"id": "1", "type": "lakeshare.table.published"}'


def run_code(number: int) -> dict[str, Any]:
    names: dict[str, Any] = {}
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    exec(compile(code, "docs/feed.md", "exec"), names)
    return names


def test_the_code_verifies_events_and_refuses_others() -> None:
    read_event, now = run_code(0)["read_event"], int(time.time())
    signatures = " ".join(sign_event(secret, "1", now, BODY) for secret in SECRETS)
    headers = {"webhook-id": "1", "webhook-timestamp": str(now), "webhook-signature": signatures}
    for secret in SECRETS:
        assert read_event(headers, BODY, secret)["type"] == "lakeshare.table.published"
    old = str(now - 3600)
    for wrong, body, secret in (
        ({}, BODY + b" ", SECRETS[0]),
        ({}, BODY, "whsec_c2VjcmV0IDM="),
        ({"webhook-id": "2"}, BODY, SECRETS[0]),
        (
            {"webhook-timestamp": old, "webhook-signature": sign_event(SECRETS[0], "1", int(old), BODY)},
            BODY,
            SECRETS[0],
        ),
        ({"webhook-signature": "v2,AAAA"}, BODY, SECRETS[0]),
    ):
        with pytest.raises(ValueError, match=r"no signature|too old"):
            read_event({**headers, **wrong}, body, secret)


def test_the_sensor_is_one_of_the_definitions() -> None:
    [sensor] = run_code(1)["defs"].sensors
    assert isinstance(sensor, dg.SensorDefinition)
    assert (sensor.name, sensor.minimum_interval_seconds) == ("shared_sales_lake_orders", 60)


def test_the_page_names_commands_and_settings() -> None:
    commands = {command.name for command in webhook_app.registered_commands}
    assert set(re.findall(r"lakeshare webhook (\w+)", PAGE)) == commands
    settings = {
        f"LAKESHARE_{name.upper()}" for name in ServerSettings.model_fields if name.startswith("webhook_")
    }
    assert set(re.findall(r"LAKESHARE_WEBHOOK_\w+", PAGE)) == settings
