"""Deliveries in S3 are identified by a listing and read where they are; what changes or fails publishes nothing."""

import datetime as dt
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from lakeshare_pipelines.cli.doctor import check_folders
from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.contracts.partitioning import SecondDimension
from lakeshare_pipelines.demo.processes import deliver
from lakeshare_pipelines.errors import DeliveryError, StoreError
from lakeshare_pipelines.ingest import (
    Delivery,
    blame_changed_delivery,
    find_deliveries,
    find_delivery,
    require_unchanged,
)
from lakeshare_pipelines.ingest.delivery import assign_files
from lakeshare_pipelines.ingest.frame import read_delivery
from lakeshare_pipelines.ingest.landing import open_landing
from lakeshare_pipelines.ingest.readable import ReadingLimits, require_readable
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import publish, unchanged_run
from lakeshare_pipelines.spark.stores import make_hadoop_conf
from lakeshare_pipelines.wap.delta import DeltaStaging
from lakeshare_pipelines.wap.stage import list_staging_locations, stage
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.storage import Stores
from tests.builders.landing import a_readings_contract, csv_text, parquet_bytes, zipped
from tests.builders.main_state import rows_on_main
from tests.builders.sets import a_contract, green, orders
from tests.builders.store_gate import StoreGate, store_gate
from tests.integration.processes import free_ports
from tests.integration.s3_server import REGION, S3Server, S3User
from tests.integration.test_ingest_quarantine import TWO_COLUMNS, rejected_rows
from tests.integration.test_ingest_unreadable import GOOD, UNREADABLE

FLIGHTS, REFERENCE = load_contracts()
DAY, NEXT_DAY = "2013-01-01", "2013-01-02"
HOUR_S = 3600
ONE = {"departures.csv": "year\n2013\n", "_SUCCESS": ""}
BUCKETS = (f"landing-{uuid4().hex[:8]}" for _ in itertools.count())


@dataclass(frozen=True)
class Source:
    """A bucket of a test's own and the settings that land in it."""

    s3: S3Server
    bucket: str
    settings: LakeSettings

    @property
    def client(self) -> Any:
        return self.s3.client()

    def put(
        self, files: Mapping[str, str | bytes], partition: str = DAY, contract: SetContract = FLIGHTS
    ) -> None:
        folder = f"{self.settings.landing_root}/{contract.name}/{partition}".removeprefix(
            f"s3://{self.bucket}/"
        )
        for name, content in files.items():
            body = content if isinstance(content, bytes) else content.encode()
            self.client.put_object(Bucket=self.bucket, Key=f"{folder}/{name}", Body=body)

    def remove(self, name: str, partition: str = DAY) -> None:
        self.client.delete_object(Bucket=self.bucket, Key=f"in/flights/{partition}/{name}")

    def find(self, partition: str = DAY) -> Delivery:
        return find_delivery(self.settings, FLIGHTS, partition)

    def listed(self, **changed: object) -> dict[str, bool]:
        """Partitions in landing, and whether each is complete."""
        found = find_deliveries(self.settings.model_copy(update=changed), FLIGHTS)
        return {delivery.partition: delivery.complete for delivery in found}


def settings_of(folder: Path, s3: S3Server, landing: str, **more: Any) -> LakeSettings:
    more = {"quiet_s": HOUR_S, "landing_s3_endpoint": s3.endpoint, "landing_s3_region": REGION, **more}
    return LakeSettings(_env_file=None, state_dir=folder, landing=landing, **more)


def use_keys(patch: pytest.MonkeyPatch, user: S3User) -> None:
    patch.setenv("AWS_ACCESS_KEY_ID", user.access_key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", user.secret_key)


@pytest.fixture(autouse=True)
def keys(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    use_keys(monkeypatch, s3.admin)


@pytest.fixture
def source(s3: S3Server, tmp_path: Path) -> Source:
    bucket = next(BUCKETS)
    s3.client().create_bucket(Bucket=bucket)
    return Source(s3, bucket, settings_of(tmp_path, s3, f"s3a://{bucket}/in/"))


def test_days_of_regions_are_folders_in_folders_of_days(source: Source) -> None:
    second = SecondDimension("region", ("eu", "us"))
    contract = replace(FLIGHTS, partitioning=replace(FLIGHTS.partitioning, second=second))
    for partition in (f"{DAY}/eu", f"{DAY}/mars", f"{NEXT_DAY}/us", "_old/eu", DAY):
        source.put(ONE, partition)
    found = find_deliveries(source.settings, contract)
    assert [(each.partition, len(each.files)) for each in found] == [(f"{DAY}/eu", 1), (f"{NEXT_DAY}/us", 1)]
    landing = open_landing(source.settings)
    landing.replace(contract.name, f"{DAY}/us", {"departures.csv": b"year\n2013\n"})
    assert find_delivery(source.settings, contract, f"{DAY}/us").complete


def test_a_delivery_is_found_without_reading_an_object(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(ONE)
    source.put({"departures.csv": "year\n"}, NEXT_DAY)
    use_keys(monkeypatch, source.s3.lister)  # may list, and read nothing
    assert source.listed() == {DAY: True, NEXT_DAY: False}
    assert source.listed(quiet_s=0) == {DAY: True, NEXT_DAY: True}
    delivery = source.find()
    assert delivery.location == f"s3://{source.bucket}/in/flights/{DAY}"
    assert [(file.name, file.size_bytes) for file in delivery.files] == [("departures.csv", 10)]
    assert (dt.datetime.now(dt.UTC) - delivery.arrived_at).total_seconds() < HOUR_S
    require_unchanged(delivery)
    with pytest.raises(DeliveryError, match=r"is not complete.*_SUCCESS.*3600 s"):
        source.find(NEXT_DAY)
    with pytest.raises(DeliveryError, match=rf"has not arrived.*s3://{source.bucket}/in/flights/2013-02-01"):
        source.find("2013-02-01")


def test_the_same_bytes_have_the_same_digest_and_other_names_or_bytes_another(source: Source) -> None:
    source.put(ONE)
    source.put(ONE, NEXT_DAY)
    first = source.find()
    assert source.find(NEXT_DAY).digest == first.digest
    source.put(ONE)
    assert source.find().digest == first.digest, "delivered again"
    source.put({"departures.csv": "year\n2014\n"})
    source.put({"departures-2.csv": "year\n"}, NEXT_DAY)
    assert len({first.digest, source.find().digest, source.find(NEXT_DAY).digest}) == 3


def overwrite(source: Source) -> None:
    source.put({"departures.csv": "year\n2014\n"})


def put_back(source: Source) -> None:
    """Overwritten and put back, as its ETag does not show."""
    before = source.find().files
    while source.find().files == before:  # stores list times in seconds
        time.sleep(0.1)
        source.put(ONE)


CHANGES: Mapping[str, Callable[[Source], None]] = {
    "overwritten": overwrite,
    "put back": put_back,
    "added": lambda source: source.put({"departures-2.csv": "year\n"}),
    "removed": lambda source: source.remove("departures.csv"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_delivery_that_changes_after_it_was_found_is_refused(source: Source, change: str) -> None:
    source.put(ONE)
    delivery = source.find()
    CHANGES[change](source)
    with pytest.raises(DeliveryError, match=rf"flights/{DAY}: changed while it was read"):
        require_unchanged(delivery)


def test_a_manifest_is_read_once_and_held_against_the_listing(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "year\n2013\n"
    entries = [{"name": "departures.csv", "size": len(text)}, {"name": "departures-2.csv"}]
    source.put({"departures.csv": text, "_manifest.json": json.dumps({"files": entries})})
    assert source.listed() == {DAY: False}
    with monkeypatch.context() as patched:
        use_keys(patched, source.s3.lister)
        assert source.listed() == {DAY: False}
    source.put({"departures-2.csv": text})
    assert len(source.find().files) == 2
    wrong: list[tuple[dict[str, object], str]] = [
        ({"size": 3}, "departures.csv has 10 bytes, _manifest.json has 3"),
        ({"sha256": "0" * 64}, "another SHA-256"),
    ]
    for entry, reason in wrong:
        source.put({"_manifest.json": json.dumps({"files": [{**entries[0], **entry}, entries[1]]})})
        with pytest.raises(DeliveryError, match=reason):
            source.find()
    right = {**entries[0], "sha256": hashlib.sha256(text.encode()).hexdigest()}
    source.put({"_manifest.json": json.dumps({"files": [right, entries[1]]})})
    source.find()


def test_folders_are_refused_by_their_run_and_what_senders_hide_is_no_delivery(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.put({"_SUCCESS": "", "_temporary/0/departures.csv": "x", ".hidden": "x"})
    source.put({**ONE, "more/departures.csv": "x"}, NEXT_DAY)
    source.put(ONE, "2013-01-03")
    source.put(ONE, "january")
    source.client.put_object(Bucket=source.bucket, Key="in/flights/notes.txt", Body=b"x")
    source.client.put_object(Bucket=source.bucket, Key="in/flights/2013-01-04/", Body=b"")
    assert source.listed() == {NEXT_DAY: True, "2013-01-03": True}
    assert "january is no partition of set flights" in caplog.text
    with pytest.raises(DeliveryError, match=r"more/departures\.csv is not a file"):
        source.find(NEXT_DAY)


def test_the_prefix_may_be_the_bucket_itself(source: Source, tmp_path: Path) -> None:
    source.client.put_object(Bucket=source.bucket, Key=f"flights/{DAY}/departures.csv", Body=b"year\n")
    source.client.put_object(Bucket=source.bucket, Key=f"flights/{DAY}/_SUCCESS", Body=b"")
    for url in (f"s3://{source.bucket}", f"s3://{source.bucket}/"):
        assert find_delivery(settings_of(tmp_path, source.s3, url), FLIGHTS, DAY).complete


def test_sample_data_are_delivered_into_the_bucket(source: Source) -> None:
    source.put({"departures-9.csv": "year\n"})
    delivery = deliver(source.settings, FLIGHTS, partition=DAY, rows=3)
    assert [file.name for file in delivery.files] == ["departures.csv.gz"]
    again = deliver(source.settings, FLIGHTS, partition=DAY, rows=3)
    assert again.digest == delivery.digest


@pytest.mark.parametrize(
    ("user", "reason", "fix"),
    [
        (S3Server.stranger, "access is denied", "s3:ListBucket"),
        (S3User("AKADMIN", "wrong"), "the secret key does not belong", "AWS_SECRET_ACCESS_KEY"),
        (S3User("AKNOBODY", "wrong"), "the access key is not known there", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_refused_credentials_are_named(
    source: Source, monkeypatch: pytest.MonkeyPatch, user: S3User, reason: str, fix: str
) -> None:
    source.put(ONE)
    use_keys(monkeypatch, user)
    for find in (source.listed, source.find):
        with pytest.raises(StoreError) as caught:
            find()
        assert source.bucket in caught.value.subject
        assert reason in caught.value.reason
        assert fix in caught.value.fix
    [finding] = [found for found in check_folders(source.settings) if found.name == "landing"]
    assert not finding.ok


def test_a_bucket_or_endpoint_that_does_not_exist_is_named(source: Source, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"s3://nowhere/in.*no such bucket.*LAKESHARE_LANDING"):
        find_deliveries(settings_of(tmp_path, source.s3, "s3://nowhere/in"), FLIGHTS)
    (port,) = free_ports(1)
    closed = source.settings.model_copy(update={"landing_s3_endpoint": f"http://127.0.0.1:{port}"})
    with pytest.raises(StoreError, match=r"the store did not answer.*LANDING_S3_ENDPOINT"):
        find_deliveries(closed, FLIGHTS)
    [finding] = [found for found in check_folders(source.settings) if found.name == "landing"]
    assert finding.ok, finding


@pytest.mark.parametrize("value", ["s3://", "s3:///prefix", "https://bucket", "ftp://bucket/in"])
def test_a_landing_that_is_no_location_is_refused(value: str) -> None:
    with pytest.raises(ValidationError, match=r"landing\s.*give a folder, s3://bucket/prefix"):
        LakeSettings(_env_file=None, landing=value)


def test_the_former_names_of_the_setting_are_read_and_one_bucket_has_one_endpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAKESHARE_LANDING_DIR", str(tmp_path))
    assert LakeSettings(_env_file=None).landing_root == str(tmp_path)
    monkeypatch.setenv("LAKESHARE_LANDING_S3", "s3://bucket/in/")
    assert LakeSettings(_env_file=None).landing_root == "s3://bucket/in"
    monkeypatch.setenv("LAKESHARE_WAREHOUSE", "s3a://bucket/lake")
    monkeypatch.setenv("LAKESHARE_S3_ENDPOINT", "http://store")
    assert LakeSettings(_env_file=None).landing_stores.s3_endpoint == "http://store"
    monkeypatch.setenv("LAKESHARE_LANDING_S3_ENDPOINT", "http://other")
    with pytest.raises(
        ValidationError, match="in the bucket s3://bucket, at http://other and at http://store"
    ):
        LakeSettings(_env_file=None)


def test_unreadable_files_are_named_with_reason_and_remedy(source: Source, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS, reading={"rowTag": "row"})
    for file, content, reason, fix in UNREADABLE.values():
        open_landing(source.settings).replace(
            contract.name, "all", {file: content, "readings-1.csv": GOOD.encode()}
        )
        delivery = find_delivery(source.settings, contract, "all")
        [spoilt] = [found for found in assign_files(contract, delivery) if found.file.name == file]
        with pytest.raises(DeliveryError) as caught:
            require_readable(spoilt)
        assert caught.value.subject == f"sensors/all/{file}"
        assert reason in caught.value.reason
        assert fix in caught.value.fix
    packed = zipped("id,name\n1," + "x" * (3 << 20))
    open_landing(source.settings).replace(contract.name, "all", {"readings.csv.gz": packed})
    [long] = assign_files(contract, find_delivery(source.settings, contract, "all"))
    with pytest.raises(DeliveryError, match=r"line 2 is longer than 1 MiB.*LAKESHARE_MAX_LINE_MB"):
        require_readable(long, ReadingLimits(max_line_mb=1))


LARGE = b"id,name\n" + b"1,a\n" * (3 << 20)


def read_in_the_middle_of(delivery: Delivery, fault: Callable[[], object]) -> None:
    """Reads a file as the checks before Spark do, with a fault after the first piece."""
    [file] = delivery.files
    with (
        blame_changed_delivery([delivery]),
        delivery.landing.translate_errors(file),
        delivery.landing.stream(file) as opened,
    ):
        assert opened.read(8) == LARGE[:8]
        fault()
        while opened.read(1 << 20):
            pass


def test_a_fault_in_the_middle_of_a_file_is_named(source: Source, gate: StoreGate, tmp_path: Path) -> None:
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    settings = source.settings.model_copy(
        update={"landing_s3_endpoint": gate.endpoint, "outside_answer_s": 2}
    )
    key = f"in/{contract.name}/all/readings.csv"

    def found() -> Delivery:
        open_landing(settings).replace(contract.name, "all", {"readings.csv": LARGE})
        return find_delivery(settings, contract, "all")

    def overwritten() -> None:
        source.client.put_object(Bucket=source.bucket, Key=key, Body=LARGE[::-1])

    def removed() -> None:
        source.client.delete_object(Bucket=source.bucket, Key=key)

    for change in (overwritten, removed):
        with pytest.raises(DeliveryError, match=r"sensors/all: changed while it was read"):
            read_in_the_middle_of(found(), change)
    with pytest.raises(StoreError, match=rf"s3://{source.bucket}/in/sensors/all.*the store did not answer"):
        read_in_the_middle_of(found(), gate.close)
    gate.open()
    read_in_the_middle_of(found(), lambda: None)
    delivery = found()
    removed()
    with pytest.raises(DeliveryError, match=r"sensors/all: changed while it was read"):
        require_readable(assign_files(contract, delivery)[0])


def landing_there(lake: Lake, settings: LakeSettings) -> Lake:
    """The tests' Spark and Nessie, with landing in the store of the settings."""
    names = ("landing", "landing_s3_endpoint", "landing_s3_region", "outside_answer_s")
    settings = lake.settings.model_copy(update={name: getattr(settings, name) for name in names})
    session = lake.spark.newSession()
    for name, value in make_hadoop_conf(Stores(settings.landing_stores), settings.landing_root).items():
        # The retries of Spark itself take half a minute.
        session.conf.set(name, "1" if name.endswith((".attempts.maximum", ".retry.limit")) else value)
    there = Lake(settings, lambda: session)
    there.__dict__["endpoint"] = lake.endpoint
    return there


@pytest.mark.usefixtures("s3_keys")
def test_spark_reads_files_of_every_format_in_place_and_rejects_rows_with_file_and_line(
    source: Source, lake: Lake, tmp_path: Path
) -> None:
    settings = source.settings.model_copy(
        update={"landing": f"s3://{source.bucket}/in [x] {{y}} 50%25/env=a"}
    )
    contract = a_readings_contract(tmp_path, columns=TWO_COLUMNS)
    contents: dict[str, bytes] = {
        "readings-day 1+2.csv": b"id,name\n1,a\nx,b\n3\n",
        "readings-2.csv.gz": zipped(csv_text([{"id": 4, "name": "d"}, {"id": "y", "name": "e"}])),
        "readings-3.jsonl": b'{"id": 5, "name": "f"}\n[]\n',
        "readings-4.parquet": parquet_bytes({"id": [6, 2**31], "name": ["g", "h"]}),
    }
    open_landing(settings).replace(contract.name, "all", contents)
    delivery = find_delivery(settings, contract, "all")
    table = read_delivery(landing_there(lake, settings).spark, contract, [delivery])[
        "sensors.readings"
    ].read()
    assert sorted(tuple(row) for row in table.frame.collect()) == [(1, "a"), (4, "d"), (5, "f"), (6, "g")]
    assert [(file, line) for file, line, _, _ in rejected_rows(table)] == [
        ("all/readings-2.csv.gz", 3),
        ("all/readings-3.jsonl", 2),
        ("all/readings-4.parquet", 2),
        ("all/readings-day 1+2.csv", 3),
        ("all/readings-day 1+2.csv", 4),
    ]
    assert table.problems == ()
    assert not (tmp_path / "landing").exists()


@pytest.fixture
def gate(s3: S3Server) -> Iterator[StoreGate]:
    with store_gate(int(s3.endpoint.rpartition(":")[2])) as gate:
        yield gate


@pytest.mark.usefixtures("s3_keys")
def test_a_store_that_fails_or_an_object_that_changes_during_a_run_publishes_nothing_and_a_rerun_succeeds(
    source: Source,
    gate: StoreGate,
    lake: Lake,
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contract = a_contract(tmp_path / "contracts", f"in_s3_{uuid4().hex[:6]}", "delta")
    day = "2024-01-01"
    settings = source.settings.model_copy(
        update={"landing_s3_endpoint": gate.endpoint, "outside_answer_s": 2}
    )
    there = landing_there(lake, settings)
    key = f"in/{contract.name}/{day}/orders.csv"

    def put(count: int) -> None:
        source.put({"orders.csv": csv_text(orders(day, count)), "_SUCCESS": ""}, day, contract)

    def fails(error: type[DeliveryError], match: str) -> None:
        with pytest.raises(error, match=match):
            stage(there, contract, [day], str(uuid4()))
        gate.open()
        put(2)
        assert [Ledger(catalog).latest(table.name) for table in contract.tables] == [None, None]
        assert list_staging_locations(there, [contract]) == []

    write = DeltaStaging.write

    def fails_at_write(fault: Callable[[], object], error: type[DeliveryError], match: str) -> None:
        """The delivery was found and checked: only the rows are still to be read by Spark."""

        def faulty(*given: Any) -> int:
            fault()
            return write(*given)

        with monkeypatch.context() as patched:
            patched.setattr(DeltaStaging, "write", faulty)
            fails(error, match)

    put(2)
    gate.close()
    fails(StoreError, rf"s3://{source.bucket}/in/.*the store did not answer")
    fails_at_write(gate.close, StoreError, rf"s3://{source.bucket}/in/.*the store did not answer")
    changed = rf"{contract.name}/{day}: changed while it was read"
    fails_at_write(lambda: put(3), DeliveryError, changed)
    fails_at_write(lambda: source.client.delete_object(Bucket=source.bucket, Key=key), DeliveryError, changed)
    staged = stage(there, contract, [day], str(uuid4()))
    assert staged.deliveries == {day: find_delivery(settings, contract, day).digest}
    publish(there, catalog, contract, staged, green(contract, staged))
    assert len(rows_on_main(there, contract, "orders")) == 2
    put(2)
    assert unchanged_run(there, catalog, contract, [day]) is not None, "the same bytes again"
    put(3)
    assert unchanged_run(there, catalog, contract, [day]) is None
