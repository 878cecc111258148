"""A query links to the run whose publication it serves; runs and backups send spans of their own."""

import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lakeshare_pipelines.backup.config import make_embedded_backup
from lakeshare_pipelines.backup.points import wait_for_point_name
from lakeshare_pipelines.backup.run import BackupRun, make_point
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_server.telemetry.logs import run_step
from lakeshare_server.telemetry.tracing import current_traceparent, span
from tests.builders.console_scene import a_scene
from tests.builders.lake_tables import a_delta_table
from tests.builders.sets import a_delivery, green, orders, staged_without_reading
from tests.builders.trace_collector import a_trace_collector, attributes_of, traced

DAY = "2024-01-05"


def test_a_query_links_to_the_run_of_its_publication(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with traced() as collector, a_scene(tmp_path, monkeypatch) as scene:
        provider, contract = scene.administered.provider, scene.contract
        a_delivery(scene.lake.settings, contract, DAY, orders(DAY))
        with run_step("stage", "run"):
            staged = staged_without_reading(scene.lake, contract, DAY, orders(DAY))
        publish_or_replay(scene.lake, provider.catalog, contract, staged, green(contract, staged))
        provider.share("shop.orders", "lake.flights")
        headers = {"Authorization": f"Bearer {provider.recipient('acme')}"}
        url = f"{scene.administered.root}{provider.settings.endpoint}/shares/flights/schemas"
        for table in ("shop/tables/orders", "lake/tables/flights"):
            assert httpx.post(f"{url}/{table}/query", headers=headers, timeout=30).status_code == 200
        assert httpx.get(f"{scene.administered.root}/activate/s3cr3t").status_code == 404
    [stage] = collector.by_name("lakeshare.stage")
    served = {
        attributes_of(each)["lakeshare.object"]: each
        for each in collector.spans()
        if attributes_of(each).get("lakeshare.action") == "query_table"
    }
    query = served["flights.shop.orders"]
    [link] = query.links
    assert (link.trace_id, link.span_id) == (stage.trace_id, stage.span_id)
    assert query.trace_id != stage.trace_id
    assert attributes_of(query)["lakeshare.version"] == 0
    sent = b"".join(request.SerializeToString() for request in collector.received)
    assert b"/activate/REDACTED" in sent
    assert b"s3cr3t" not in sent
    # It was not published by a run.
    assert list(served["flights.lake.flights"].links) == []


def test_a_process_sends_its_spans_as_the_environment_orders_and_joins_the_trace_of_its_parent() -> None:
    code = """
from lakeshare_server.telemetry.logs import run_step
try:
    with run_step("stage", "r1", set="shop", rows=None):
        raise ValueError("row 7: ann@example.org")
except ValueError:
    pass
"""
    with a_trace_collector() as collector:
        parent = {"TRACEPARENT": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        environment = {**os.environ, **collector.environment, **parent}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    [stage] = collector.spans()
    assert (stage.name, stage.trace_id.hex(), stage.parent_span_id.hex()) == (
        "lakeshare.stage",
        "ab" * 16,
        "cd" * 8,
    )
    assert attributes_of(stage) == {"lakeshare.run_id": "r1", "lakeshare.set": "shop"}
    assert (stage.status.code, stage.status.message) == (2, "ValueError")
    assert b"example.org" not in collector.received[0].SerializeToString()
    assert collector.services() == {"lakeshare-pipelines"}


def test_without_a_collector_nothing_is_recorded() -> None:
    with span("lakeshare.stage", run_id="r1") as started:
        assert not started.is_recording()
        assert current_traceparent() is None


def test_copies_and_verification_of_a_backup_are_spans_of_its_point(tmp_path: Path) -> None:
    settings = LakeSettings(_env_file=None, state_dir=tmp_path / "state")
    a_delta_table(tmp_path / "state" / "warehouse" / "air" / "flights")
    run = BackupRun(settings, make_embedded_backup(settings), wait_for_point_name(), "r1")
    with traced() as collector:
        make_point(run, dt.datetime.now(dt.UTC), lambda _text: None, lambda _progress: None)
    [point] = collector.by_name("lakeshare.backup")
    for name in ("lakeshare.backup.copy", "lakeshare.backup.verify"):
        [step] = collector.by_name(name)
        assert step.parent_span_id == point.span_id
    assert attributes_of(point)["lakeshare.run_id"] == "r1"
