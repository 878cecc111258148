"""Sets in Iceberg catalogs other than Nessie, staged on branches of their tables: the promises of test_publication.py.

In a SQL catalog on PostgreSQL.
"""

import pytest

from lakeshare_pipelines.errors import IcebergCatalogError
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import TableAudit
from lakeshare_pipelines.wap.stage import staging_for
from tests.builders.applied_changes import applied
from tests.builders.canonical import Rows, same_rows
from tests.builders.promised_sets import a_promising_contract, created
from tests.builders.sets import a_contract
from tests.builders.spark_iceberg import SparkIceberg, frame_rows
from tests.integration import test_publication as story
from tests.integration import test_serveable_publication as promises
from tests.integration.conftest import a_lake_in_catalog
from tests.integration.test_publication import PublishedSet
from tests.integration.test_published_iceberg_changes import Walk


@pytest.fixture
def published_set(jdbc_lake, catalog, tmp_path, request, monkeypatch) -> PublishedSet:
    # No other writer is at work: nothing is compared with the last publication.
    monkeypatch.setattr(TableAudit, "_find_rows_of_others", None)
    name = f"jdbc{len(request.node.name)}"
    return PublishedSet(jdbc_lake, catalog, a_contract(tmp_path / "contracts", name, "iceberg"))


def test_a_set_is_published_whole_when_its_audit_is_green_and_not_at_all_when_it_is_red(published_set):
    story.every_table_gets_its_first_number_once(published_set)
    staged = story.a_red_audit_changes_nothing_and_masks_personal_columns(published_set)
    story.a_repaired_staged_set_is_audited_again_and_published(published_set, staged)
    story.rows_written_after_the_audit_are_not_published_and_dropped_when_abandoned(published_set)
    published_set.require_spark_reads_the_same()
    # Tables on a disk are served by their own host.
    story.recipients_read_what_spark_reads(published_set, published_set.lake.settings.state_dir)


def test_runs_at_once_are_replayed_and_changes_lead_through_a_rollback(published_set):
    story.a_conflict_is_answered_by_a_replay_and_no_day_is_lost(published_set)
    story.a_rollback_is_a_new_number_that_shows_old_rows(published_set)
    published_set.require_spark_reads_the_same()
    changes_lead_from_each_number_to_the_next(published_set)


def test_a_set_is_published_in_a_sql_catalog_on_sqlite(lake, catalog, tmp_path):
    uri = f"sqlite:///{tmp_path}/catalog.db"
    with a_lake_in_catalog(lake, tmp_path, "local", uri=uri) as there:
        contract = a_contract(tmp_path / "contracts", "in_sqlite", "iceberg")
        story.every_table_gets_its_first_number_once(PublishedSet(there, catalog, contract))


def test_a_branch_is_rewritten_for_promised_clients_and_new_columns_are_on_main_at_once(
    jdbc_lake, catalog, tmp_path
):
    tables = SparkIceberg(jdbc_lake.spark, jdbc_lake.catalog("main"))
    jdbc_lake.iceberg.create_namespace_if_not_exists("lake")
    tables.run("kept_deleted", [created(promises.MERGE_ON_READ), promises.NAMES, promises.DELETE])
    columns = {"name": "string", "later": "int"}
    contract = a_promising_contract(tmp_path, "kept", {"deleted": columns}, ["python-parquet"])
    before = jdbc_lake.table("lake.kept_deleted").count()

    staged, verdicts = promises.staged_and_judged(jdbc_lake, contract)

    assert verdicts.green, [(one.name, one.reason) for one in verdicts.failed]
    assert staged.tables[0].rewritten == ("ROW_LEVEL_DELETES",)
    main = jdbc_lake.table("lake.kept_deleted")
    assert main.columns == ["day", "id", "name", "later"], "columns belong to the table, not to a branch"
    assert main.where("later IS NULL").count() == main.count() == before
    [publication] = publish(jdbc_lake, catalog, contract, staged, verdicts)
    assert publication.rows == jdbc_lake.table("lake.kept_deleted").count() == before + 2


def test_a_table_of_a_version_that_pyiceberg_does_not_write_is_refused_by_name(jdbc_lake, tmp_path):
    tables = SparkIceberg(jdbc_lake.spark, jdbc_lake.catalog("main"))
    jdbc_lake.iceberg.create_namespace_if_not_exists("lake")
    tables.run("third_deleted", [created().replace("'2'", "'3'"), promises.NAMES])
    contract = a_promising_contract(tmp_path, "third", {"deleted": {"name": "string"}}, None)
    with pytest.raises(IcebergCatalogError, match=r"jdbc: .*lake\.third_deleted, of Iceberg's version 3"):
        staging_for(jdbc_lake, contract).open("wap-third-1")


def changes_lead_from_each_number_to_the_next(published_set: PublishedSet) -> None:
    lake, table = published_set.lake, published_set.contract.tables[0]
    with Walk(lake, published_set.catalog, published_set.contract).reader(table.short_name) as reader:
        before = Rows(reader.rows(reader.snapshot(version=0)).columns, ())
        for publication in published_set.history()[0][::-1]:
            version = publication.version
            after = reader.rows(reader.snapshot(version=version))
            same_rows(
                applied(before, reader.change_rows(reader.changes(version, version))), after, str(version)
            )
            before = after
    same_rows(before, frame_rows(lake.table(table.name)))
