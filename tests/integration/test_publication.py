"""Publication: what is audited green becomes one number for every table of the set; everything else, nothing.

Two sets in each format, each published day by day: every run of Spark takes seconds, so each step is a promise. The
first are in S3, the second on the disk.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import dagster as dg
import delta_sharing
import pandas as pd
import pytest
from typer.testing import CliRunner

from lakeshare_pipelines.cli.main import app
from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.wap import LakeResource, SparkResource, wap_set
from lakeshare_pipelines.errors import BranchMoved, NoSuchPublication, NotAudited, SnowflakeError
from lakeshare_pipelines.share.publication import publish, publish_or_replay, repair, retry, rollback
from lakeshare_pipelines.share.snowflake import find_published, require_readable
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.delta import STAGED_FOLDER, table_location
from lakeshare_pipelines.wap.inputs import read_publication
from lakeshare_pipelines.wap.stage import (
    drop_abandoned,
    drop_staging_location,
    list_staging_locations,
    stage,
    staging_for,
)
from lakeshare_pipelines.wap.staged import Lake, Staged, Verdicts
from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    EvidenceStore,
    Ledger,
    Publication,
    SharedTable,
    apply_shares,
)
from lakeshare_server.cli.verify import Verification, open_client
from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.envelope import KEY_FILE, load_signing_key
from lakeshare_server.tables.evidence import EvidenceWriter
from tests.builders.iceberg_rest import rest_catalog
from tests.builders.main_state import main_state, rows_at_each_step, rows_on_main
from tests.builders.recipients import Recipients
from tests.builders.sets import a_contract, a_delivery, an_order, green, orders, staged_without_reading
from tests.builders.sharing import Provider, Running, a_server
from tests.builders.slack import slack_stand_in
from tests.builders.trace_collector import ATraceCollector, attributes_of, traced

MONDAY, TUESDAY, WEDNESDAY, THURSDAY = (f"2024-01-0{day}" for day in range(1, 5))


def delete_staged(lake: Lake, contract: SetContract, staged: Staged, short_name: str, where: str) -> None:
    """Change a staged table by hand."""
    table = contract.table(short_name)
    place = lake.table_at(table.name, staged.ref) if table.format == "iceberg" else None
    folder = f"{table_location(lake.settings, table)}/{STAGED_FOLDER}/{staged.ref}"
    lake.spark.sql(f"DELETE FROM {place or f'delta.`{folder}`'} WHERE {where}")


@dataclass
class PublishedSet:
    """A set, and what recipients and readers of main see of it."""

    lake: Lake
    catalog: Catalog
    contract: SetContract
    delivered: dict[str, Sequence[dict[str, object]]] = field(default_factory=dict)

    def deliver(self, day: str, rows: Sequence[dict[str, object]]) -> None:
        a_delivery(self.lake.settings, self.contract, day, rows)
        self.delivered[day] = rows

    def audited(self, day: str) -> tuple[Staged, Verdicts]:
        staged = stage(self.lake, self.contract, [day], str(uuid4()))
        return staged, audit_and_save(self.lake, self.contract, staged)

    def staged_and_green(self, day: str) -> tuple[Staged, Verdicts]:
        """A delivered day that is ready to be published: neither its reading nor its audit is the subject."""
        staged = staged_without_reading(self.lake, self.contract, day, self.delivered[day])
        return staged, green(self.contract, staged)

    def publish(self, staged: Staged, verdicts: Verdicts) -> list[Publication]:
        return publish(self.lake, self.catalog, self.contract, staged, verdicts)

    def publish_or_replay(self, staged: Staged, verdicts: Verdicts) -> list[Publication]:
        return publish_or_replay(self.lake, self.catalog, self.contract, staged, verdicts)

    def latest(self) -> list[Publication | None]:
        return [Ledger(self.catalog).latest(table.name) for table in self.contract.tables]

    def history(self) -> list[list[Publication]]:
        return [list(Ledger(self.catalog).history(table.name)) for table in self.contract.tables]

    def rows(self, short_name: str = "orders") -> list[tuple[object, ...]]:
        return rows_at_each_step(self.lake, self.contract, short_name)

    def require_spark_reads_the_same(self) -> None:
        assert rows_on_main(self.lake, self.contract, "orders") == self.rows("orders")

    def seen(self) -> tuple[object, ...]:
        """What must stay as it is when nothing is published."""
        return main_state(self.lake, self.contract), self.latest()

    def require_all_shown(self) -> None:
        """Engines that open the tables' own metadata find the newest publications, and nothing unpublished.

        Outside Nessie, a table's metadata lists the snapshots of its branches, too, and such engines are refused.
        """
        for table in self.contract.tables:
            published = find_published(self.catalog, table.name)
            if self.lake.named_catalog is None:
                require_readable(published, self.lake.settings)
            else:
                with pytest.raises(SnowflakeError, match="snapshots that were never published"):
                    require_readable(published, self.lake.settings)

    def in_dagster(self, **changed: object) -> LakeResource:
        """The lake as a resource of runs; `changed` are settings of it that differ."""
        at, lake = self, copy(self.lake)
        lake.settings = lake.settings.model_copy(update=changed)

        class TestsLake(LakeResource):
            def lake(self) -> Lake:
                return lake

            def catalog(self) -> Catalog:
                return at.catalog

        return TestsLake(spark=SparkResource())

    def places(self) -> list[tuple[str, str]]:
        return [(place.ref, place.state) for place in list_staging_locations(self.lake, [self.contract])]


@pytest.fixture
def published_set(lake: Lake, catalog: Catalog, contract: SetContract) -> PublishedSet:
    return PublishedSet(lake, catalog, contract)


@pytest.fixture
def published_in_s3(s3_lake: Lake, catalog: Catalog, contract: SetContract) -> PublishedSet:
    return PublishedSet(s3_lake, catalog, contract)


def test_a_set_is_published_whole_when_its_audit_is_green_and_not_at_all_when_it_is_red(
    published_in_s3, tmp_path
):
    published_set = published_in_s3
    every_table_gets_its_first_number_once(published_set)
    if published_set.contract.tables[0].format == "iceberg":
        # What is in force is read from the ledger.
        the_same_delivery_again_changes_nothing(published_set)
    with traced() as collector:
        staged = a_red_audit_changes_nothing_and_masks_personal_columns(published_set)
        a_repaired_staged_set_is_audited_again_and_published(published_set, staged)
    the_steps_of_a_run_are_one_trace(published_set, collector)
    a_corrected_delivery_replaces_its_partition_only(published_set)
    a_transform_reads_each_number_with_its_rows(published_set)
    rows_written_after_the_audit_are_not_published_and_dropped_when_abandoned(published_set)
    published_set.require_spark_reads_the_same()
    recipients_read_what_spark_reads(published_set, tmp_path / "host 2")
    assert not (published_set.lake.settings.state_dir / "warehouse" / published_set.contract.name).exists()


def a_transform_reads_each_number_with_its_rows(published_set: PublishedSet) -> None:
    orders, _ = published_set.history()
    read = {each.version: read_publication(published_set.lake, each).count() for each in orders}
    assert len(set(read.values())) > 1
    assert read == {each.version: each.rows for each in orders}


def every_table_gets_its_first_number_once(published_set: PublishedSet) -> None:
    published_set.deliver(MONDAY, orders(MONDAY, 3))
    staged, verdicts = published_set.staged_and_green(MONDAY)
    publications = published_set.publish(staged, verdicts)
    name = published_set.contract.name
    assert {(p.table, p.version, p.rows) for p in publications} == {
        (f"{name}.orders", 0, 3),
        (f"{name}.totals", 0, 1),
    }
    assert published_set.latest() == publications
    assert published_set.rows() == sorted(
        (str(row["day"]), row["id"], row["customer"], row["email"], row["amount"])
        for row in orders(MONDAY, 3)
    )
    assert published_set.places() == []
    assert published_set.publish(staged, verdicts) == publications
    assert [len(numbers) for numbers in published_set.history()] == [1, 1]


def the_same_delivery_again_changes_nothing(published_set: PublishedSet) -> None:
    seen = published_set.seen()
    again = published_set.staged_and_green(MONDAY)
    assert published_set.publish_or_replay(*again) == published_set.latest()
    assert published_set.seen() == seen
    assert published_set.places() == []


def a_red_audit_changes_nothing_and_masks_personal_columns(published_set: PublishedSet) -> Staged:
    seen = published_set.seen()
    wrong = an_order(TUESDAY, 7, customer="", email="secret@example.org")
    published_set.deliver(TUESDAY, [*orders(TUESDAY, 2), wrong])
    staged, verdicts = published_set.audited(TUESDAY)
    assert not verdicts.green
    samples = [row for verdict in verdicts.failed for row in verdict.samples]
    assert samples
    assert "secret" not in str(samples)
    with pytest.raises(NotAudited, match="customer"):
        published_set.publish(staged, verdicts)
    assert published_set.seen() == seen
    assert published_set.places() == [(staged.ref, "red")]
    return staged


def a_repaired_staged_set_is_audited_again_and_published(published_set: PublishedSet, staged: Staged) -> None:
    lake, catalog, contract = published_set.lake, published_set.catalog, published_set.contract
    delete_staged(lake, contract, staged, "orders", "customer IS NULL")
    outcome = retry(lake, catalog, [contract], staged.ref)
    assert outcome.verdicts.green
    assert [(p.version, p.rows) for p in outcome.publications] == [(1, 5), (1, 2)]
    expected = [(day, row["id"]) for day, count in ((MONDAY, 3), (TUESDAY, 2)) for row in orders(day, count)]
    assert [row[:2] for row in published_set.rows()] == expected
    if contract.tables[0].format == "iceberg":
        # Outside Nessie, a table keeps the snapshots of dropped branches until they expire.
        count = "1" if lake.named_catalog is None else "2"
        with pytest.raises(SnowflakeError, match=f"lists {count} snapshots that were never published"):
            require_readable(find_published(catalog, contract.tables[0].name), lake.settings)


def the_steps_of_a_run_are_one_trace(published_set: PublishedSet, collector: ATraceCollector) -> None:
    [stage] = collector.by_name("lakeshare.stage")
    red, green_audit = collector.by_name("lakeshare.audit")
    refused, published = collector.by_name("lakeshare.publish")
    assert {span.trace_id for span in (stage, red, refused, green_audit, published)} == {stage.trace_id}
    assert (refused.status.message, published.status.message) == ("NotAudited", "")
    assert {span.parent_span_id for span in (red, green_audit, published)} == {stage.span_id}
    inner = [span.name for span in collector.spans() if span.parent_span_id == published.span_id]
    assert sorted(inner) == ["lakeshare.index", "lakeshare.index", "lakeshare.land"]
    assert [attributes_of(span)["lakeshare.green"] for span in (red, green_audit)] == [False, True]
    assert b"secret" not in b"".join(request.SerializeToString() for request in collector.received)
    for publication in published_set.latest():
        assert publication is not None
        assert publication.traceparent is not None
        assert publication.traceparent.startswith(f"00-{stage.trace_id.hex()}-{stage.span_id.hex()}-")
        assert publication.started_at is not None
        assert publication.started_at < publication.published_at


def a_corrected_delivery_replaces_its_partition_only(published_set: PublishedSet) -> None:
    monday, tuesday = sorted(published_set.rows("totals"))
    assert (monday[:2], tuesday[0]) == ((MONDAY, 3), TUESDAY)
    published_set.deliver(MONDAY, orders(MONDAY, 1))
    published = published_set.publish(*published_set.staged_and_green(MONDAY))
    assert [p.version for p in published] == [2, 2]
    assert [row[0] for row in published_set.rows()] == [MONDAY, TUESDAY, TUESDAY]
    monday, after = sorted(published_set.rows("totals"))
    assert (monday[:2], after) == ((MONDAY, 1), tuesday)


def rows_written_after_the_audit_are_not_published_and_dropped_when_abandoned(
    published_set: PublishedSet,
) -> None:
    seen, rows = published_set.seen(), published_set.rows()
    published_set.deliver(WEDNESDAY, orders(WEDNESDAY, 3))
    staged, verdicts = published_set.staged_and_green(WEDNESDAY)
    delete_staged(published_set.lake, published_set.contract, staged, "orders", "id % 2 = 0")
    with pytest.raises(BranchMoved, match=staged.ref):
        published_set.publish(staged, verdicts)
    assert published_set.seen() == seen
    assert drop_abandoned(published_set.lake, published_set.contract) == [staged.ref]
    assert published_set.places() == []
    assert (published_set.seen(), published_set.rows()) == (seen, rows)


def recipients_read_what_spark_reads(published_set: PublishedSet, other_host: Path) -> None:
    """Orders, from a server on the host of the pipelines, and totals from one on another, by both clients."""
    settings, name = published_set.lake.settings, published_set.contract.name
    shared = {key: getattr(settings, key) for key in ("s3_endpoint", "s3_region", "warehouse")}
    tables = tuple(SharedTable("shop", short, f"{name}.{short}") for short in ("orders", "totals"))
    apply_shares(published_set.catalog, [DeclaredShare(f"{name}_s3", tables)])
    _, token = Recipients(published_set.catalog).add(f"{name}-reader", (f"{name}_s3",))
    [latest, *_] = published_set.history()[0]
    sign_with_digests(published_set, latest)
    for state_dir, table in zip(dict.fromkeys((settings.state_dir, other_host)), tables, strict=False):
        sharing = ServerSettings(
            _env_file=None, state_dir=state_dir, database_url=settings.catalog_url, port=0, **shared
        )
        with a_server(Provider(sharing, published_set.catalog)) as server:
            expected = published_set.rows(table.name)
            frame = delta_sharing.load_as_pandas(f"{server.profile(token)}#{name}_s3.shop.{table.name}")
            assert rows_of(frame) == expected
            recipients_verify_the_evidence(published_set, server, token, table)
            if published_set.contract.tables[0].format == "iceberg":
                opened = rest_catalog(server, token, f"{name}_s3").load_table(f"shop.{table.name}")
                assert rows_of(opened.scan().to_pandas()) == expected


def sign_with_digests(published_set: PublishedSet, publication: Publication) -> None:
    """Sign a publication again, with the digests of its files in S3, which only a setting has read."""
    files = published_set.lake.publications
    settings = files.settings.model_copy(update={"evidence_digests": "read"})
    writer = EvidenceWriter.open(replace(files, settings=settings), published_set.catalog)
    assert writer.sign_again(publication).version == publication.version


def recipients_verify_the_evidence(
    published_set: PublishedSet, server: Running, token: str, table: SharedTable
) -> None:
    """Each number was signed when it was published, with digests of one table and sizes of the other."""
    assert EvidenceStore(published_set.catalog).unsigned([table.table]) == []
    names = (f"{published_set.contract.name}_s3", "shop", table.name)
    keys = [load_signing_key(published_set.lake.settings).public]
    asked = Verification(names, None, table.table, keys, restricted=False)
    with open_client(server.profile(token)) as client:
        result = asked.verify_table(client, evidence=None, save=None, downloads=True)
    assert result.downloaded == result.files > 0
    assert result.is_full == (table.name == "orders")
    assert result.sizes == (0 if table.name == "orders" else result.files)
    assert result.audit["blocking"] == 0


def rows_of(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.astype({"day": str}).itertuples(index=False))


def test_runs_at_once_are_replayed_and_a_rollback_is_a_new_number(published_set, monkeypatch):
    a_conflict_is_answered_by_a_replay_and_no_day_is_lost(published_set)
    if published_set.contract.tables[0].format == "iceberg":
        # After the conflict, a replay is the same in both formats.
        a_replay_whose_audit_is_red_is_kept_and_reported(published_set, monkeypatch)
        a_red_set_is_discarded_by_command(published_set, monkeypatch)
    a_rollback_is_a_new_number_that_shows_old_rows(published_set)
    published_set.require_spark_reads_the_same()


def a_conflict_is_answered_by_a_replay_and_no_day_is_lost(published_set: PublishedSet) -> None:
    for day in (MONDAY, TUESDAY):
        published_set.deliver(day, orders(day))
    monday, tuesday = published_set.staged_and_green(MONDAY), published_set.staged_and_green(TUESDAY)
    with traced() as collector:
        published_set.publish_or_replay(*monday)
        latest = published_set.publish_or_replay(*tuesday)
    [replay], [staged_again] = collector.by_name("lakeshare.replay"), collector.by_name("lakeshare.stage")
    assert staged_again.parent_span_id == replay.span_id
    assert all(str(row.traceparent)[3:35] == replay.trace_id.hex() for row in latest)
    assert {row[0] for row in published_set.rows()} == {MONDAY, TUESDAY}
    assert [p.partition for p in published_set.history()[0]] == [TUESDAY, MONDAY]
    assert [p.rows for p in published_set.latest()] == [6, 2]
    assert published_set.places() == []
    published_set.require_all_shown()


def a_replay_whose_audit_is_red_is_kept_and_reported(
    published_set: PublishedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in (WEDNESDAY, THURSDAY):
        published_set.deliver(day, orders(day))
    wednesday = published_set.staged_and_green(WEDNESDAY)
    staged, verdicts = published_set.staged_and_green(THURSDAY)
    publications = published_set.publish_or_replay(*wednesday)
    published_set.deliver(THURSDAY, [an_order(THURSDAY, 7, customer="")])
    with slack_stand_in() as slack:
        monkeypatch.setenv("LAKESHARE_SLACK_TOKEN", "xoxb-1")
        monkeypatch.setenv("LAKESHARE_SLACK_BASE_URL", slack.url)
        with pytest.raises(dg.Failure, match="after a replay") as refusal:
            publish_in_dagster(published_set, staged, verdicts)
    replayed = f"{staged.ref}-r1"
    assert published_set.places() == [(replayed, "red")]
    assert not refusal.value.allow_retries
    assert refusal.value.metadata["lakeshare/staged_at"].value == replayed
    (message,) = slack.messages
    assert replayed in message["text"]
    assert "customer" in message["text"]
    assert published_set.latest() == publications


def a_red_set_is_discarded_by_command(published_set: PublishedSet, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = published_set.seen()
    [(ref, state)] = published_set.places()
    assert state == "red"
    monkeypatch.setattr("lakeshare_pipelines.cli.main.list_contracts", lambda: (published_set.contract,))
    settings = published_set.lake.settings
    environment = {"LAKESHARE_STATE_DIR": settings.state_dir, "LAKESHARE_WAREHOUSE": settings.lake_root}
    runner = CliRunner(env={name: str(folder) for name, folder in environment.items()})
    ended = runner.invoke(app, ["wap", "discard", ref])
    assert (ended.exit_code, ended.output) == (0, f"{ref} is gone\n")
    assert (published_set.places(), published_set.seen()) == ([], seen)


def publish_in_dagster(published_set: PublishedSet, staged: Staged, verdicts: Verdicts) -> None:
    """The set's publish op, as a run calls it, on the tests' own lake."""
    judgement = {"staged": staged.as_record(), "verdicts": verdicts.as_record()}
    ops = wap_set(published_set.contract).node_def.node_defs
    publish_op = next(op for op in ops if op.name.endswith("_publish"))
    with dg.build_op_context(resources={"lakeshare": published_set.in_dagster()}) as context:
        list(publish_op(context, judgement))


def a_rollback_is_a_new_number_that_shows_old_rows(published_set: PublishedSet) -> None:
    lake, catalog, contract = published_set.lake, published_set.catalog, published_set.contract
    table, rows, target = contract.tables[0], published_set.rows(), published_set.history()[0][0]
    published_set.deliver(MONDAY, orders(MONDAY, 1))
    published = published_set.publish(*published_set.staged_and_green(MONDAY))
    old, new = target.version, target.version + 1
    assert [p.version for p in published] == [new, new]
    key, before = lake.settings.state_dir / KEY_FILE, published_set.seen()
    key.chmod(0o644)
    with pytest.raises(Unavailable, match=r"evidence key .* has mode 644"):
        rollback(lake, catalog, contract, table, old)
    assert published_set.seen() == before
    key.chmod(0o600)
    back = rollback(lake, catalog, contract, table, old)
    assert (back.version, back.rows, back.rollback_of) == (new + 1, target.rows, old)
    assert EvidenceStore(catalog).find(table.name, back.version) is not None
    assert published_set.rows() == rows
    # Running it again, because the first result was lost, changes nothing, by either number of that state.
    assert rollback(lake, catalog, contract, table, old) == back
    assert rollback(lake, catalog, contract, table, back.version) == back
    assert [p.version for p in published_set.history()[0]] == [*range(new + 1, -1, -1)]
    published_set.require_all_shown()
    with pytest.raises(NoSuchPublication, match="99"):
        rollback(lake, catalog, contract, table, 99)
    # A delivery that was rolled back is not in force any more: the same delivery is published again.
    assert published_set.publish(*published_set.staged_and_green(MONDAY))[0].version == new + 2
    published_set.require_all_shown()


def test_a_staged_delta_table_that_was_changed_with_deletion_vectors_is_refused_before_any_table_changes(
    lake, catalog, tmp_path
):
    by_order = a_contract(tmp_path, "vectors", "delta", **{"GROUP BY day": "GROUP BY day, id"})
    published_set = PublishedSet(lake, catalog, by_order)
    published_set.deliver(MONDAY, orders(MONDAY))
    staged = stage(lake, by_order, [MONDAY], str(uuid4()))
    folder = f"{table_location(lake.settings, by_order.table('totals'))}/{STAGED_FOLDER}/{staged.ref}"
    lake.spark.sql(f"ALTER TABLE delta.`{folder}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    lake.spark.sql(
        f"DELETE FROM delta.`{folder}` WHERE amount = {published_set.delivered[MONDAY][0]['amount']}D"
    )
    changed = replace(staged, head=staging_for(lake, by_order).seal(staged.ref))

    with pytest.raises(NotAudited, match=r"vectors\.totals was changed there with deletion vectors; run the"):
        published_set.publish(changed, green(by_order, changed))

    assert set(main_state(lake, by_order).values()) == {None}
    assert repair(lake, catalog, by_order) == []
    drop_staging_location(lake, by_order, staged.ref)
    assert published_set.places() == []
