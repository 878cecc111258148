"""The log has one JSON object per line, with the ids of request, trace and run, and no secrets in either form."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.telemetry.logs import JsonFormatter, TextFormatter, redact
from tests.builders.held_requests import silent_service
from tests.builders.server_process import a_process
from tests.builders.sharing import FLIGHTS, a_provider_of_flights, files

HUNG = "/shares/flights/schemas/lake/tables/hung/version"
SECRET = "s3cr3t-Value_0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer REDACTED"),
        (f"headers {{'authorization': 'Basic {SECRET}=='}}", "headers {'authorization': 'Basic REDACTED'}"),
        (f"GET https://b.s3/k?X-Amz-Date=1&X-Amz-Signature={SECRET}&x=1", "X-Amz-Date=1&X-Amz-Signature=REDACTED&x=1"),
        (f"https://b/k?X-Amz-Credential={SECRET}&X-Goog-Signature={SECRET}", "Credential=REDACTED&X-Goog"),
        (f"https://acc.blob/c?sv=1&sig={SECRET}", "?sv=1&sig=REDACTED"),
        (f"postgresql+psycopg://lake:{SECRET}@db:5432/lake", "postgresql+psycopg://lake:REDACTED@db:5432/lake"),
        (f'{{"clientSecret": "{SECRET}", "a": 1}}', '{"clientSecret": "REDACTED", "a": 1}'),
        (f"bearer_token={SECRET}", "bearer_token=REDACTED"),
        (f"token lsa.{SECRET} and key lakeshare-admin-{SECRET}", "token REDACTED and key REDACTED"),
        (f"eyJhbGciOiJSUzI1NiJ9.{SECRET}.{SECRET}", "REDACTED"),
        (f"GET /activate/{SECRET} failed", "GET /activate/REDACTED failed"),
        (f"/console/sign-in/callback?code={SECRET}&state=1", "?code=REDACTED&state=1"),
        ("status code=404, ratio=1", "status code=404, ratio=1"),
        ("table shop.orders: 3 of 12 files; a basic sign of the code=", "a basic sign of the code="),
    ],
)  # fmt: skip
def test_values_that_give_access_are_replaced(text: str, kept: str) -> None:
    assert kept in redact(text)
    assert SECRET not in redact(text)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
def test_errors_and_arguments_are_redacted(formatter: logging.Formatter) -> None:
    try:
        int(f"Bearer {SECRET}")
    except ValueError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, "f", 1, "of %s", (f"https://h/p?X-Amz-Signature={SECRET}",), sys.exc_info()
        )
    line = formatter.format(record)
    assert SECRET not in line
    assert "ValueError: invalid literal for int() with base 10: 'Bearer REDACTED'" in line


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_log_of_a_server_is_json_with_the_ids_of_requests_and_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    provider = a_provider_of_flights(tmp_path)
    token = provider.recipient()
    with silent_service() as store:
        provider.follow("lake.hung", "s3://hung/table")
        provider.share("lake.flights", "lake.hung")
        outside = {"S3_ENDPOINT": store, "S3_REGION": "eu-north-1", "OUTSIDE_ANSWER_S": "1.1"}
        environment = {f"LAKESHARE_{name}": value for name, value in outside.items()}
        with a_process(provider, environment={**environment, "LAKESHARE_LOG_FORMAT": "json"}) as (
            process,
            url,
        ):
            with httpx.Client(base_url=url, timeout=30) as client:
                headers = {"Authorization": f"Bearer {token}"}
                query = client.post(f"{FLIGHTS}/query", headers=headers)
                signed = files(query)[0]["url"]
                for path in (tmp_path / "table").rglob("*.parquet"):
                    path.unlink()
                gone = client.get(signed)
                hung = client.get(
                    f"{FLIGHTS.replace('flights', 'hung').replace('shares/hung', 'shares/flights')}/version",
                    headers=headers,
                )
                wrong = client.get("/shares", headers={"Authorization": f"Bearer {SECRET}"})
            process.terminate()
            _, log = process.communicate(timeout=30)
    assert (gone.status_code, hung.status_code, wrong.status_code) == (404, 503, 401)
    lines = read_lines(log)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    [outage] = [line for line in lines if "hung does not answer" in line["message"]]
    assert (outage["level"], outage["logger"]) == ("warning", "lakeshare_server.outbound")
    assert outage["request_id"] == hung.headers["x-request-id"]
    for secret in (token, SECRET, signed.partition("X-Amz-Signature=")[2]):
        assert secret not in log


def test_commands_log_json_with_the_id_of_the_run() -> None:
    code = """
import logging
from lakeshare_server.settings import read_log_format
from lakeshare_server.telemetry.logs import configure_logs
from lakeshare_server.telemetry.logs import run_step
configure_logs(read_log_format)
with run_step("audit", "r1"):
    logging.getLogger("lakeshare_pipelines.wap.audit").warning("shop.orders: odd failed (%s)", "error")
logging.getLogger("other").info("not shown")
progress = logging.getLogger("progress")
progress.addHandler(logging.NullHandler())
progress.error("handled by its own handler")
"""

    def run(**environment: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stderr

    [line] = read_lines(run(LAKESHARE_LOG_FORMAT="json"))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "lakeshare_pipelines.wap.audit",
        "message": "shop.orders: odd failed (error)",
        "run_id": "r1",
    }
    assert run() == "shop.orders: odd failed (error)\n"
