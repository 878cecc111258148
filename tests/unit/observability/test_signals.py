"""A run of the server and of `lakeshare metrics` gives every signal once; panels and alert rules read nothing else."""

import json
import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from sqlalchemy import text, update

from lakeshare_pipelines.backup.config import make_embedded_backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.run import run_drill
from lakeshare_pipelines.cli.metrics import Exporter
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_server.catalog import Ledger, RecordedContract
from lakeshare_server.catalog.models import DeliveryRow
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.catalog.webhooks import Outbox, add_webhook
from lakeshare_server.metrics import LABELS, list_metrics
from lakeshare_server.routes import health
from tests.builders.backup_points import a_point
from tests.builders.console_scene import Scene, a_scene
from tests.builders.held_requests import silent_service
from tests.builders.lake_tables import a_delta_table
from tests.builders.scrapes import ADDED, Scrape, find_groupings, list_panel_queries, select_metrics
from tests.builders.sets import a_delivery, green, orders, staged_without_reading
from tests.builders.waiting import wait_until

OBSERVABILITY = Path(__file__).parents[3] / "deploy" / "observability"
DASHBOARDS = sorted((OBSERVABILITY / "dashboards").glob("*.json"))
RULES = yaml.safe_load((OBSERVABILITY / "rules.yaml").read_text())
DAY = "2024-01-05"
LEVELS = """
slaProperties:
  - {property: frequency, value: 0.01, unit: s}
"""


class Noted(logging.Handler):
    """Keeps the messages of the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrape]:
    folder = tmp_path_factory.mktemp("signals")
    with pytest.MonkeyPatch.context() as patch, silent_service() as store:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setattr(health, "CHECK_S", 0.0)
        outside = {"s3_endpoint": store, "s3_region": "eu-north-1", "outside_answer_s": 1.1}
        bounds = {"metrics_refresh_s": 0.0, "metrics_tables": 5, "index_cache_bytes": 1}
        with a_scene(folder, patch, more_contract=LEVELS, webhook_interval_s=0, **outside, **bounds) as scene:
            found = Scrape()
            logging.getLogger().addHandler(noted := Noted())
            _send_requests(scene, folder)
            _publish_with_event(scene)
            _scrape_exporter(scene, folder, found)
            _scrape_server(scene, found)
            logging.getLogger().removeHandler(noted)
            found.log = "\n".join(noted.messages)
            yield found


def _send_requests(scene: Scene, folder: Path) -> None:
    provider = scene.administered.provider
    provider.follow("lake.hung", "s3://hung/table")
    for name in ("near", "far"):
        provider.follow(f"lake.{name}", a_delta_table(folder / name))
    provider.share("lake.far", "lake.flights", "lake.hung", "lake.near", "shop.orders", "shop.totals")
    token = provider.recipient("acme")
    root = f"{scene.administered.root}{provider.settings.endpoint}/shares/flights/schemas"
    with httpx.Client(verify=False, timeout=30) as client:
        for table, status in (("near", 200), ("far", 200), ("near", 200), ("flights", 200), ("hung", 503)):
            headers = {"Authorization": f"Bearer {token}"}
            assert client.post(f"{root}/lake/tables/{table}/query", headers=headers).status_code == status
        assert client.get(f"{root}/lake/tables/none/version").status_code == 401
        assert client.get(f"{scene.administered.root}/no/such/{token}").status_code == 404
    assert scene.administered.client("auditor").get("/shares").status_code == 200


def _publish_with_event(scene: Scene) -> None:
    """Publishes a day of the set, whose event for a webhook is dead then."""
    catalog, contract = scene.administered.provider.catalog, scene.contract
    with editing(catalog, "tests") as edit:
        webhook = add_webhook(edit, "acme", "https://hooks.example", "sealed")
    a_delivery(scene.lake.settings, contract, DAY, orders(DAY))
    staged = staged_without_reading(scene.lake, contract, DAY, orders(DAY))
    recorded = RecordedContract(contract.digest, contract.name, contract.version, contract.text)
    Ledger(catalog).record_contract(recorded)
    publish_or_replay(scene.lake, catalog, contract, staged, green(contract, staged))
    minute = timedelta(minutes=1)
    Outbox(catalog, minute, minute).plan(webhook.key, lambda _event: "{}", datetime.now(UTC) + minute)
    with catalog.writing(seen=False) as session:
        session.execute(update(DeliveryRow).values(state="dead"))


def _scrape_exporter(scene: Scene, folder: Path, found: Scrape) -> None:
    settings = scene.lake.settings
    backup = make_embedded_backup(settings)
    a_delta_table(settings.state_dir / "warehouse" / "air" / "flights")
    a_point(backup, folder / "held", below="air")
    for copy in (Path(backup.target.url) / "objects").rglob("*.parquet"):
        copy.write_bytes(b"damaged")
    assert not run_drill(backup, Points(backup), settings, "seed").passed
    exporter = Exporter(settings, refresh_s=3600)
    with exporter.serve("127.0.0.1", 0) as url:
        wait_until(lambda: httpx.get(url).text.count("lakeshare_source_up{") == 4)
        wait_until(lambda: all(value == 1 for value in _read(url).values("lakeshare_source_up")))
        found.add(httpx.get(url).text)


def _read(url: str) -> Scrape:
    read = Scrape()
    read.add(httpx.get(url, timeout=30).text)
    return read


def _scrape_server(scene: Scene, found: Scrape) -> None:
    url = f"{scene.administered.root}/metrics"
    found.add(httpx.get(url, timeout=30).text)
    with scene.administered.provider.catalog.engine.connect() as connection:

        def execute(statement: str) -> None:
            connection.execute(text(statement))
            connection.commit()

        # As a database does whose disk is read-only.
        execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON allowances BEGIN SELECT RAISE(ABORT, 'read only'); END"
        )
        found.add(httpx.get(url, timeout=30).text)
        execute("DROP TRIGGER refuse")
        execute("ALTER TABLE webhook_deliveries RENAME TO gone")
        found.add(httpx.get(url, timeout=30).text)
        execute("ALTER TABLE gone RENAME TO webhook_deliveries")
        execute("ALTER TABLE audit_log RENAME TO gone")
        httpx.get(f"{scene.administered.root}/no/such/path", timeout=30)
        wait_until(lambda: _read(url).values("lakeshare_audit_backlog_events") == [1])
        execute("ALTER TABLE gone RENAME TO audit_log")
    wait_until(lambda: _read(url).values("lakeshare_audit_backlog_events") == [0])
    found.add(httpx.get(url, timeout=30).text)


def test_every_metric_is_exported_with_its_labels(scrape: Scrape) -> None:
    for metric in list_metrics():
        for name in metric.samples:
            assert name in scrape.samples, name
            assert scrape.labels(name) - {"le"} == set(metric.labels), name
    known = {name for metric in list_metrics() for name in metric.samples}
    created = {name for name in scrape.samples if name.endswith("_created")}
    assert scrape.samples.keys() - created == known


def test_signals_have_the_values_of_what_happened(scrape: Scrape) -> None:
    assert scrape.values("lakeshare_service_unavailable", service="s3://hung")[0] == 1
    assert scrape.values("lakeshare_service_call_errors_total", scheme="s3", error="Unavailable")[0] > 0
    assert scrape.values("lakeshare_database_up") == [1, 1, 0, 1]
    assert scrape.values("lakeshare_check_failed", check="database_writes") == [0, 1, 0, 0]
    assert scrape.values("lakeshare_database_errors_total", error="OperationalError")[-1] > 0
    assert scrape.values("lakeshare_webhook_deliveries", state="dead") == [2] * 4
    assert scrape.values("lakeshare_freshness_goal_seconds", table="shop.orders") == [0.01] * 4
    assert min(scrape.values("lakeshare_publication_age_seconds", table="shop.orders")) > 0.01
    assert scrape.values("lakeshare_tables_left_out") == [1] * 4
    assert scrape.values("lakeshare_unsigned_publications") == [1] * 4
    assert scrape.values("lakeshare_index_cache_evictions_total")[0] > 0
    assert scrape.values("lakeshare_staged_sets", set="shop", state="red") == [1]
    assert scrape.values("lakeshare_landing_deliveries", set="shop") == [1]
    assert scrape.values("lakeshare_last_run_rows", set="shop") == [4]
    assert scrape.values("lakeshare_drill_failed", backup="lake") == [1]
    assert scrape.values("lakeshare_backup_goal_seconds", backup="lake") == [36 * 3600]
    actions = {labels["action"] for labels, _ in scrape.samples["lakeshare_requests_total"]}
    assert actions == {"query_table", "table_version", "list_all_shares", "unknown"}
    classes = {labels["credential"] for labels, _ in scrape.samples["lakeshare_requests_total"]}
    assert classes == {"bearer", "admin", "none"}
    assert not any("acme" in labels.values() for found in scrape.samples.values() for labels, _ in found)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_read_exported_metrics(scrape: Scrape, path: Path) -> None:
    dashboard = json.loads(path.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for title, query, legend in list_panel_queries(dashboard):
        _require_exported(scrape, title, query, {})
        labels = {part.partition("}}")[0] for part in legend.split("{{")[1:]}
        assert labels <= find_groupings(query) | ADDED, title


def test_rules_read_exported_metrics_and_have_pages(scrape: Scrape) -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    for rule in rules:
        _require_exported(scrape, rule.get("alert", rule.get("record")), rule["expr"], recorded)
    tested = yaml.safe_load((OBSERVABILITY / "rules_test.yaml").read_text())["tests"]
    alerts = [case["alert_rule_test"][0] for case in tested]
    page = (OBSERVABILITY.parents[1] / "docs" / "how-to" / "respond-to-incidents.md").read_text()
    sections = dict(re.findall(r"^## (.+)\n(?:\n(?s:(.*?)))(?=^## |\Z)", page, re.MULTILINE))
    by_anchor = {title.lower().replace(" ", "-"): body for title, body in sections.items()}
    for rule in rules:
        if "alert" in rule:
            cases = [case["exp_alerts"] for case in alerts if case["alertname"] == rule["alert"]]
            assert sorted(map(len, cases)) == [0, 1], rule["alert"]
            runbook, _, anchor = rule["annotations"]["runbook"].partition("#")
            assert runbook == "docs/how-to/respond-to-incidents.md"
            assert f"`{rule['alert']}`" in by_anchor[anchor]
    named = set(re.findall(r"`(lakeshare_[a-z_]+)", page))
    assert named <= {name for metric in list_metrics() for name in (metric.name, *metric.samples)}


def _require_exported(scrape: Scrape, title: str, query: str, recorded: dict[str, str]) -> None:
    selected = select_metrics(query)
    assert selected or any(name in query for name in recorded), title
    labels = set(ADDED)
    for metric in selected:
        if metric.name == "up":
            continue
        assert metric.name in scrape.samples, (title, metric.name)
        labels |= scrape.labels(metric.name)
        for label, operator, value in metric.conditions:
            assert label in scrape.labels(metric.name), (title, metric.name, label)
            if operator == "=":
                assert scrape.values(metric.name, **{label: value}), (title, metric.name, label, value)
    assert find_groupings(query) <= labels, title


def test_lines_of_the_log_are_those_of_the_incidents(scrape: Scrape) -> None:
    page = (OBSERVABILITY.parents[1] / "docs" / "how-to" / "respond-to-incidents.md").read_text()
    store, database, *_ = re.findall(r"^\| log \| (.+) \|$", page, re.MULTILINE)
    for quoted in re.findall("`([^`]+)`", f"{store} {database}"):
        for part in re.split("…|N", quoted.replace("s3://bucket", "s3://hung")):
            assert part in scrape.log, part


def test_every_label_is_described() -> None:
    used = {label for metric in list_metrics() for label in metric.labels} | {"recipient"}
    assert used == set(LABELS)
    names = [metric.name for metric in list_metrics()]
    assert len(names) == len(set(names))
    assert all(metric.help.endswith(".") or metric.help.endswith(")") for metric in list_metrics())
