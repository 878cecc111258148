"""Sets in Iceberg catalogs other than Nessie, staged on branches of their tables: the promises of test_publication.py.

In a SQL catalog on PostgreSQL.
"""

import pytest

from tests.builders.sets import a_contract
from tests.integration import test_publication as story
from tests.integration.test_publication import PublishedSet


@pytest.fixture
def published_set(jdbc_lake, catalog, tmp_path, request) -> PublishedSet:
    name = f"jdbc{len(request.node.name)}"
    return PublishedSet(jdbc_lake, catalog, a_contract(tmp_path / "contracts", name, "iceberg"))


def test_a_set_is_published_whole_when_its_audit_is_green_and_not_at_all_when_it_is_red(published_set):
    story.every_table_gets_its_first_number_once(published_set)
    story.the_same_delivery_again_changes_nothing(published_set)
    staged = story.a_red_audit_changes_nothing_and_masks_personal_columns(published_set)
    story.a_repaired_staged_set_is_audited_again_and_published(published_set, staged)
    story.an_abandoned_staged_set_is_dropped_and_nothing_else(published_set)
    story.a_corrected_delivery_replaces_its_partition_only(published_set)
    story.rows_written_after_the_audit_are_not_published(published_set)
    published_set.require_spark_reads_the_same()
    story.recipients_read_what_spark_reads(published_set)


def test_runs_at_once_are_replayed_and_a_rollback_is_a_new_number(published_set, monkeypatch):
    story.a_conflict_is_answered_by_a_replay_and_no_day_is_lost(published_set)
    story.a_replay_whose_audit_is_red_is_kept_and_reported(published_set, monkeypatch)
    story.a_rollback_is_a_new_number_that_shows_old_rows(published_set)
    published_set.require_spark_reads_the_same()
