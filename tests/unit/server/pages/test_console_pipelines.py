"""Pages of the console about the pipelines: staged sets, trends of checks, backups, and the system."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.run import run_drill
from lakeshare_pipelines.cli import console as cli_console
from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.share.publication import publish_or_replay
from lakeshare_pipelines.share.shares import apply_declared_shares
from lakeshare_pipelines.wap.staged import list_attempts
from lakeshare_server.catalog import Ledger, audit
from lakeshare_server.pages.console.system import list_changed_settings
from lakeshare_server.settings import ServerSettings
from tests.builders.administration import an_administered_server
from tests.builders.backup_points import DAY, a_backup, a_point
from tests.builders.console import browser
from tests.builders.console_scene import MARKUP, Scene, a_scene
from tests.builders.lake_tables import a_delta_table
from tests.builders.publications import a_publication
from tests.builders.sets import a_contract, a_delivery, green, orders, staged_without_reading
from tests.builders.waiting import wait_until


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch, a_scene(tmp_path_factory.mktemp("console"), patch) as made:
        yield made


def test_a_red_set_shows_its_checks_and_masked_rows_and_nothing_runs_as_markup(scene: Scene) -> None:
    page = browser(scene.administered, "auditor").client.get(f"/console/quality/{scene.red.ref}").text
    assert MARKUP not in page
    assert "3 rows are odd &lt;script&gt;" in page
    assert "failed rows" in page
    assert "<dd>at most 0</dd>" in page
    assert page.count("<td>***</td>") == 3
    assert "example.org" not in page
    assert "lakeshare quarantine show shop --run x" in page
    assert "No check failed" not in page
    assert "/retry" not in page
    listed = browser(scene.administered).page("/console/quality")
    assert f"/console/quality/{scene.red.ref}" in listed
    assert "shop.orders: odd, shop.orders: rows_parsed" in listed
    assert scene.unfinished in listed
    assert "/retry" not in browser(scene.administered).page(f"/console/quality/{scene.unfinished}")
    browser(scene.administered).page("/console/quality/wap-shop-none", 404)
    assert not (scene.lake.settings.state_dir / "nessie").exists()


def test_retry_runs_as_a_job_and_discard_removes_what_is_staged(scene: Scene) -> None:
    """The audit of a complete set needs Spark: tests/integration/test_console_staged.py."""
    owner, page = browser(scene.administered), f"/console/quality/{scene.unfinished}"
    begun = owner.send(page, f"{page}/retry").headers["location"]
    busy = owner.send(page, f"{page}/discard", {}, 409).text
    assert "a job of set shop is running" in busy
    wait_until(lambda: "http-equiv" not in owner.page(begun), 0.2)
    assert "its run ended before everything was written" in owner.page(begun)
    assert owner.send(page, f"{page}/discard").headers["location"].endswith("/quality?done=discarded")
    assert scene.unfinished not in owner.page("/console/quality")
    owner.page(page, 404)
    assert [attempt.staged.ref for attempt in list_attempts(scene.lake)] == [scene.red.ref]


def test_a_rollback_is_a_job_with_a_page_and_an_event(scene: Scene) -> None:
    catalog, lake, contract = scene.administered.provider.catalog, scene.lake, scene.contract
    for day in ("2024-01-03", "2024-01-04"):
        a_delivery(lake.settings, contract, day, orders(day))
        staged = staged_without_reading(lake, contract, day, orders(day))
        publish_or_replay(lake, catalog, contract, staged, green(contract, staged))
    console = browser(scene.administered, "steward")
    path = "/console/publications/shop.orders/0/rollback"
    for refused in (path.replace("/0/", "/7/"), path.replace("shop.orders", "none")):
        assert "does not exist" in console.send("/console/shares", refused, {}, 404).text
    assert "cannot be used" in console.send("/console/shares", path.replace("/0/", "/-1/"), {}, 400).text
    Ledger(catalog).append([a_publication(table="lake.seen", set_name="", audited=False)])
    followed = console.send("/console/shares", "/console/publications/lake.seen/0/rollback", {}, 400).text
    assert "It is followed" in followed
    assert "meanwhile" in console.send("/console/shares", path, {"newest": "0"}, 409).text
    begun = console.send("/console/shares", path, {"newest": "1"}).headers["location"]
    assert '<meta http-equiv="refresh" content="3">' in console.page(begun)
    wait_until(lambda: "http-equiv" not in console.page(begun), 0.2)
    page = console.page(begun)
    assert "shop.orders shows publication 0 again, as number 2" in page
    assert "lakeshare rollback -- shop.orders 0" in page
    assert begun in console.page("/console/jobs")
    assert begun in console.page("/console/system")
    latest = Ledger(catalog).latest("shop.orders")
    assert latest is not None
    assert (latest.version, latest.rollback_of) == (2, 0)
    query = audit.Search(action="console_roll_back", principal="steward")
    wait_until(lambda: len(audit.search(catalog, query, 9)) == 6)
    event = audit.search(catalog, query, 9)[-1].event
    assert (event.object_name, event.version, event.status) == ("shop.orders", 0, 303)
    assert event.details is not None
    assert event.details["job"] == begun.rpartition("/")[2]


def test_only_stewards_and_owners_start_jobs_from_forms_of_their_session(scene: Scene) -> None:
    auditor, owner = browser(scene.administered, "auditor"), browser(scene.administered)
    for path in (
        "/console/publications/lake.flights/0/rollback",
        f"/console/quality/{scene.red.ref}/retry",
        f"/console/quality/{scene.red.ref}/discard",
        "/console/system/examine",
    ):
        assert "auditor and may not" in auditor.send("/console/shares", path, {}, 403).text
        owner.post(path, {}, 403)
    assert "does not exist" in auditor.page("/console/jobs/20260101T000000-00000000", 404)


def test_the_trend_of_each_check_is_that_of_its_publications(scene: Scene) -> None:
    ledger = Ledger(scene.administered.provider.catalog)
    a_contract(scene.lake.settings.state_dir.parent / "contracts", "trend", "delta")
    for number, failed in enumerate((["trend.orders: serveable"], [], ["trend.orders: gone", "…"])):
        evidence = {"checks": 9, "failed": len(failed), "failed_checks": failed}
        common = {"set_name": "trend", "run_id": f"run{number}", "verdicts": evidence}
        ledger.append([a_publication(table=f"trend.{name}", **common) for name in ("orders", "totals")])
    ledger.append([a_publication(table="trend.orders", set_name="trend", run_id="back", verdicts={})])
    console = browser(scene.administered)
    assert "/console/quality/sets/trend" in console.page("/console/quality?q=TREN")
    assert "No set matches" in console.page("/console/quality?q=none")
    page = console.page("/console/quality/sets/trend")
    assert "its last 3 audited publications" in page
    gone = page[page.index("trend.orders: gone <span") :]
    assert "1 of 3" in gone[:300]
    assert "The contract has it no more." in gone[:300]
    structure = page[page.index("trend.orders: structure") :]
    assert "0 of 3" in structure[:400]
    # A record without room for all names does not show which other checks passed.
    assert structure[: structure.index("</tr>")].count("unknown") == 1
    assert structure[: structure.index("</tr>")].count("passed") == 2
    assert "trend.orders 2, trend.totals 2" in page
    console.page("/console/quality/sets/none", 404)


def test_backups_show_points_drills_and_the_plan_of_a_restore(scene: Scene, tmp_path: Path) -> None:
    console, state = browser(scene.administered, "auditor"), scene.lake.settings.state_dir
    assert "It has no point yet" in console.page("/console/backups")
    a_delta_table(state / "warehouse" / "air" / "flights")
    backup = a_backup(state / "warehouse", state / "backups")
    reasons = ("One copy is odd.",)
    a_point(backup, tmp_path / "held", below="air", reasons=reasons)
    run_drill(backup, Points(backup), scene.lake.settings, "seed")
    broken = state / "backups" / "_lakeshare" / "lake" / "points" / "2026-11-19"
    broken.mkdir()
    (broken / "point.json").write_text("{")
    assert "It has no point yet" in console.page("/console/backups")  # kept for a short time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_console, "BACKUP_LIFE_S", 0.0)
        page = console.page("/console/backups/lake")
        assert DAY in page
        assert "point.json cannot be read" in page
        assert "Time to recover (RTO)" in page
        assert "1 damaged" in console.page("/console/backups")
        point = console.page(f"/console/backups/lake/points/{DAY}")
        assert "One copy is odd." in point
        plan = console.page(f"/console/backups/lake/points/{DAY}?plan=air/flights")
    assert "missing objects are restored" in plan
    assert f"lakeshare restore table air/flights --in-place --backup lake --point {DAY}" in plan
    console.page("/console/backups/none", 404)
    console.page("/console/backups/lake/points/2026-01-01", 404)
    console.page(f"/console/backups/lake/points/{DAY}?plan=none", 404)
    assert "damaged" in console.page("/console/backups/lake/points/2026-11-19")


def test_the_system_page_shows_what_runs_without_secrets_and_what_doctor_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_scene(tmp_path, monkeypatch, metrics_token="sesame") as scene:
        provider = scene.administered.provider
        provider.follow("lake.followed", a_delta_table(tmp_path / "followed"))
        owner = browser(scene.administered)
        page = owner.page("/console/system")
        assert "lake.followed" in page
        assert "not by this worker" in page
        assert "sesame" not in page
        assert "LAKESHARE_METRICS_TOKEN" in page
        assert "(set)" in page
        assert str(provider.catalog.schema_state().revision) in page
        owner.page("/console/tables/lake.followed")
        assert "s ago" in owner.page("/console/system")
        found = owner.send("/console/system", "/console/system/examine", {}, 200).text
        assert "state folder" in found
        assert "Check again" in found
        assert not (scene.lake.settings.state_dir / "nessie").exists()


@pytest.mark.parametrize("fields", ["//ann:sesame@db/lake", "//db/lake?user=ann&password=sesame"])
def test_the_password_of_the_database_is_not_shown(fields: str) -> None:
    settings = ServerSettings(database_url=f"postgresql+psycopg:{fields}")
    [changed] = [one for one in list_changed_settings(settings) if one.name == "LAKESHARE_DATABASE_URL"]
    assert ("db/lake" in changed.value, "sesame" in changed.value) == (True, False)


def test_a_nessie_that_does_not_answer_costs_seconds_and_hides_no_other_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setenv("LAKESHARE_NESSIE_URI", f"http://127.0.0.1:{port}/api/v2")
        monkeypatch.setattr(cli_console, "NESSIE_S", 0.5)
        a_contract(tmp_path / "contracts", "store", "iceberg")
        with a_scene(tmp_path, monkeypatch, outside_answer_s=5.0) as scene:
            owner, began = browser(scene.administered), time.monotonic()
            page = owner.page("/console/quality")
            assert f"http://127.0.0.1:{port}/api/v2 does not answer" in page
            assert scene.red.ref in page
            assert "3 rows are odd" in owner.page(f"/console/quality/{scene.red.ref}")
            # The client of Nessie itself waits for a minute.
            assert time.monotonic() - began < 20


def test_a_read_that_takes_too_long_is_given_up_and_stops_no_other_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_console, "list_contract_files", lambda _folder: time.sleep(20))
    with an_administered_server(tmp_path, outside_answer_s=1.5) as administered:
        owner, began = browser(administered), time.monotonic()
        page = owner.page("/console/quality")
        assert "What is staged cannot be read now: pipelines: staged sets does not answer" in page
        assert "does not answer" in owner.page("/console/quality/wap-shop-x", 503)
        assert "It has no point yet" in owner.page("/console/backups")
        assert "unavailable for" in owner.page("/console/system")
        assert time.monotonic() - began < 15


def test_settings_of_the_pipelines_that_cannot_be_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESHARE_SPARK_MODE", "odd")
    with an_administered_server(tmp_path) as administered:
        page = browser(administered).page("/console/quality", 503)
        assert "the settings of the pipelines cannot be used. spark_mode: Input should be" in page


def test_a_server_without_the_pipelines_states_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakeshare_pipelines.cli.NEEDED", ("no_such_package",))
    with a_scene(tmp_path, monkeypatch) as scene:
        owner = browser(scene.administered)
        for path in ("/console/quality", "/console/backups"):
            page = owner.page(path)
            assert "pip install 'lakeshare[pipelines]'" in page
            assert "no_such_package are not installed" in page
        assert "not installed on this host" in owner.page("/console/system")
        refused = owner.send("/console/shares", f"/console/quality/{scene.red.ref}/discard", {}, 503).text
        assert "pip install" in refused
        rollback = "/console/publications/lake.flights/0/rollback"
        assert "pip install" in owner.send("/console/shares", rollback, {}, 503).text


def test_shares_are_compared_with_the_contracts(scene: Scene) -> None:
    console, catalog = browser(scene.administered), scene.administered.provider.catalog
    entry, _ = scene.contract.shares
    before = console.page("/console/drift?contracts=yes")
    assert "Shared by the next run" in before
    assert f"<code>{entry.share}.{entry.schema}.{entry.name}</code>" in before
    apply_declared_shares(catalog, load_contracts(scene.lake.settings.contracts_dir))
    assert "tables that contracts share are shared as they declare it" in console.page(
        "/console/drift?contracts=yes"
    )
