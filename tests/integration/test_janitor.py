"""The nightly janitor: it completes, drops and prunes on a real lake, and one set's failure keeps it from no other."""

from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass

import dagster as dg
import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.cli import main
from lakeshare_pipelines.defs.maintenance import janitor_definitions
from lakeshare_pipelines.share import publication
from lakeshare_pipelines.share.changes import get_changes_folder
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, lock_set
from tests.builders.sets import a_contract, orders
from tests.integration.test_publication import MONDAY, TUESDAY, WEDNESDAY, PublishedSet


class Killed(Exception):
    """In place of the end of a process."""


def killed(*_: object) -> None:
    raise Killed


@pytest.fixture
def sets(lake: Lake, catalog: Catalog, tmp_path, monkeypatch) -> list[PublishedSet]:
    """An Iceberg and a Delta set, each with a publication that its run did not record and with an old red set."""
    found = []
    for table_format in ("iceberg", "delta"):
        contract = a_contract(tmp_path / table_format, f"cleaned_{table_format}", table_format)
        published_set = PublishedSet(lake, catalog, contract)
        for day in (MONDAY, TUESDAY, WEDNESDAY):
            published_set.deliver(day, orders(day))
        published_set.publish(*published_set.staged_and_green(MONDAY))
        published_set.staged_and_green(TUESDAY)
        landed = published_set.staged_and_green(WEDNESDAY)
        with monkeypatch.context() as patch:
            patch.setattr(publication, "record_landed", killed)
            with pytest.raises(Killed):
                published_set.publish(*landed)
        found.append(published_set)
    return found


@dataclass(frozen=True)
class Night:
    """A run of the janitor, the steps of it that ended well, and its log."""

    ran: dg.ExecuteInProcessResult
    steps: set[str]
    log: str


def clean(sets: list[PublishedSet], **settings: object) -> Night:
    resources = {"lakeshare": sets[0].in_dagster(**settings)}
    definitions = dg.Definitions.merge(
        janitor_definitions([each.contract for each in sets]), dg.Definitions(resources=resources)
    )
    with dg.DagsterInstance.ephemeral() as instance:
        job = definitions.resolve_job_def("janitor")
        ran = job.execute_in_process(instance=instance, raise_on_error=False)
        log = "\n".join(entry.user_message for entry in instance.all_logs(ran.run_id))
    done = {event.step_key for event in ran.all_events if event.is_step_success and event.step_key}
    return Night(ran, done, log)


def test_a_set_in_use_is_reported_and_others_are_cleaned_all_the_same(sets, monkeypatch):
    iceberg, delta = sets
    root = get_changes_folder(iceberg.lake, iceberg.contract.tables[0].name, iceberg.latest()[0].location)
    iceberg.lake.stores.write(f"{root}/of-no-publication/changes.parquet", b"of a run that ended")

    with lock_set(delta.catalog, delta.contract.name, "a run", 0), monkeypatch.context() as patch:
        patch.setenv("LAKESHARE_AUDIT_RETENTION_DAYS", "1")
        the_command_names_the_set_and_repairs_the_other_one(sets, patch)
        night = clean(sets, lock_wait_s=0)

    assert night.steps == {"repair_ledger", "prune_audit_log"}
    for step in ("drop_abandoned_places", "drop_abandoned_changes"):
        failure = night.ran.failure_data_for_node(step)
        assert failure is not None
        assert "cleaned_delta is being published by a run" in str(failure.user_failure_data)
    assert [len(history) for history in (*iceberg.history(), *delta.history())] == [2, 2, 1, 1]
    assert iceberg.places() == []
    assert any(TUESDAY in ref for ref, _ in delta.places())
    assert "of-no-publication" not in iceberg.lake.stores.folders(root, missing_ok=True)
    assert "removed 0 audit events of more than 1 days ago" in night.log

    night = clean(sets)
    assert night.ran.success
    assert [len(history) for history in delta.history()] == [2, 2]
    assert delta.places() == []
    assert len(delta.rows()) == len(iceberg.rows()) == 6
    delta.require_spark_reads_the_same()
    assert "cleaned_delta: completed 2 unfinished publications" in night.log
    assert "audit events are kept" in night.log


def the_command_names_the_set_and_repairs_the_other_one(
    sets: list[PublishedSet], patch: pytest.MonkeyPatch
) -> None:
    delta_first = [each.contract for each in reversed(sets)]
    lake = copy(sets[0].lake)
    lake.settings = lake.settings.model_copy(update={"lock_wait_s": 0})
    patch.setattr(main, "_open_lake_with_spark", lambda: nullcontext(lake))
    patch.setattr(main, "_open_catalog", lambda: sets[0].catalog)
    patch.setattr(main, "list_contracts", lambda: delta_first)
    ended = CliRunner().invoke(main.app, ["repair"])
    assert ended.exit_code == 1
    assert ended.stderr.startswith("lakeshare: cleaned_delta: set cleaned_delta is being published by a run")
    assert ended.stdout == (
        "cleaned_iceberg.orders is publication 1: 6 rows\ncleaned_iceberg.totals is publication 1: 2 rows\n"
    )
