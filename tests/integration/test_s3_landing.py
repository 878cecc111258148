"""A delivery in S3 arrives in the landing folder whole, as it was listed, and once; else the folder stays as it was."""

import datetime as dt
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.errors import DeliveryError, StoreError
from lakeshare_pipelines.file_lock import hold_lock
from lakeshare_pipelines.ingest import find_deliveries, find_delivery
from lakeshare_pipelines.ingest.delivery import fetch_deliveries
from lakeshare_pipelines.settings import LakeSettings
from tests.integration.processes import free_ports
from tests.integration.s3_server import S3Server, S3User, a_client

FLIGHTS, REFERENCE = load_contracts()
DAY = "2013-01-01"
HOUR_S = 3600
ONE = {"departures.csv": "year\n2013\n", "_SUCCESS": ""}
BUCKETS = (f"landing-{number}" for number in itertools.count(1))


@dataclass(frozen=True)
class Source:
    """A bucket of a test's own and the settings that land from it."""

    s3: S3Server
    bucket: str
    settings: LakeSettings

    @property
    def client(self) -> Any:
        return self.s3.client()

    def put(self, files: Mapping[str, str], partition: str = DAY) -> None:
        for name, text in files.items():
            self.client.put_object(
                Bucket=self.bucket, Key=f"in/flights/{partition}/{name}", Body=text.encode()
            )

    def fetch(self, client: Any = None) -> list[str]:
        return fetch_deliveries(client or self.client, self.settings, FLIGHTS)

    def landed(self) -> dict[str, str]:
        """Everything that is in landing and not hidden, by path."""
        root = self.settings.landing / "flights"
        files = {p.relative_to(root): p for p in root.rglob("*") if p.is_file()}
        return {
            path.as_posix(): file.read_text()
            for path, file in files.items()
            if not any(part.startswith(".") for part in path.parts)
        }


@pytest.fixture
def source(s3: S3Server, tmp_path: Path) -> Source:
    bucket = next(BUCKETS)
    s3.client().create_bucket(Bucket=bucket)
    return Source(s3, bucket, settings_of(tmp_path, f"s3://{bucket}/in"))


def settings_of(tmp_path: Path, landing_s3: str, quiet_s: int = HOUR_S) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path, landing_s3=landing_s3, quiet_s=quiet_s)


def reads_of(client: Any, then: Callable[[str], None] = lambda key: None) -> list[str]:
    """The keys this client reads, as they come; `then` is called just before each is read."""
    keys: list[str] = []

    def note(params: dict[str, Any], **_: Any) -> None:
        keys.append(params["url_path"].rpartition("/")[2])
        then(keys[-1])

    client.meta.events.register("before-call.s3.GetObject", note)
    return keys


def fetch_until(source: Source, name: str) -> None:
    """Fetch, and be stopped in front of the file of this name."""

    def stop(key: str) -> None:
        if key == name:
            raise KeyboardInterrupt

    client = source.client
    reads_of(client, stop)
    with pytest.raises(KeyboardInterrupt):
        source.fetch(client)


def test_a_complete_delivery_is_found_in_landing_with_the_same_bytes(source: Source) -> None:
    source.put({"departures.csv": "year\n" + "2013\n" * 700_000, "_SUCCESS": ""})
    assert source.fetch() == [DAY]
    delivery = find_delivery(source.settings, FLIGHTS, DAY)
    assert [file.name for file in delivery.files] == ["departures.csv"]
    assert delivery.files[0].read_text() == "year\n" + "2013\n" * 700_000
    assert [path.name for path in delivery.path.parent.iterdir() if path.name.startswith(".s3-")] == []


def test_nothing_is_asked_when_s3_is_off(tmp_path: Path) -> None:
    nobody = a_client("http://127.0.0.1:9", S3User("a", "b"))
    assert fetch_deliveries(nobody, LakeSettings(_env_file=None, state_dir=tmp_path), FLIGHTS) == []


def test_what_is_here_is_not_read_again_and_what_changed_is(source: Source) -> None:
    source.put(ONE)
    source.put(ONE, "2013-01-02")
    assert source.fetch() == [DAY, "2013-01-02"]
    first = find_delivery(source.settings, FLIGHTS, DAY)

    client = source.client
    reads = reads_of(client)
    assert source.fetch(client) == []
    assert reads == []

    source.put({"departures.csv": "year\n2014\n"})
    assert source.fetch(client) == [DAY]
    assert find_delivery(source.settings, FLIGHTS, DAY).digest != first.digest
    assert source.landed()[f"{DAY}/departures.csv"] == "year\n2014\n"


def test_a_file_that_is_gone_from_a_changed_delivery_is_gone_here(source: Source) -> None:
    source.put({**ONE, "departures-2.csv": "year\n"})
    source.fetch()
    source.client.delete_object(Bucket=source.bucket, Key=f"in/flights/{DAY}/departures-2.csv")
    assert source.fetch() == [DAY]
    assert sorted(source.landed()) == [f"{DAY}/_SUCCESS", f"{DAY}/departures.csv"]


def test_without_a_marker_it_waits_for_the_quiet_time(source: Source, tmp_path: Path) -> None:
    source.put({"departures.csv": "year\n"})
    assert source.fetch() == []
    assert source.landed() == {}
    eager = settings_of(tmp_path, f"s3://{source.bucket}/in", quiet_s=0)
    assert fetch_deliveries(source.client, eager, FLIGHTS) == [DAY]
    # Quiet there is quiet here: it need not wait a second time.
    assert find_delivery(source.settings, FLIGHTS, DAY).complete


def test_a_manifest_makes_it_complete_and_is_held_to_its_word(source: Source) -> None:
    listed = {"files": [{"name": "departures.csv", "size": 5}, {"name": "departures-2.csv"}]}
    source.put({"departures.csv": "year\n", "_manifest.json": json.dumps(listed)})
    assert source.fetch() == [DAY]
    assert not find_deliveries(source.settings, FLIGHTS)[0].complete
    source.put({"departures-2.csv": "year\n"})
    assert source.fetch() == [DAY]
    assert len(find_delivery(source.settings, FLIGHTS, DAY).files) == 2


def test_markers_alone_folders_and_what_senders_hide_are_no_delivery(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.put({"_SUCCESS": "", "_temporary/0/departures.csv": "x", ".hidden": "x"})
    source.put(ONE, "january")
    source.client.put_object(Bucket=source.bucket, Key="in/flights/notes.txt", Body=b"x")
    assert source.fetch() == []
    assert source.landed() == {}
    assert "january is no partition of set flights" in caplog.text


def test_a_listing_of_many_pages_is_read_to_its_end(source: Source) -> None:
    days = [f"2013-01-0{number}" for number in range(1, 6)]
    for day in days:
        source.put(ONE, day)
    client = source.client
    asked: list[str | None] = []

    def three_a_page(params: dict[str, Any], **_: Any) -> None:
        params["MaxKeys"] = 3
        asked.append(params.get("ContinuationToken"))

    client.meta.events.register("before-parameter-build.s3.ListObjectsV2", three_a_page)
    assert source.fetch(client) == days
    assert sum(token is not None for token in asked) == 3
    assert len(source.landed()) == 2 * len(days)


def test_the_prefix_may_be_the_bucket_itself(source: Source, tmp_path: Path) -> None:
    source.client.put_object(Bucket=source.bucket, Key=f"flights/{DAY}/departures.csv", Body=b"year\n")
    source.client.put_object(Bucket=source.bucket, Key=f"flights/{DAY}/_SUCCESS", Body=b"")
    for url in (f"s3://{source.bucket}", f"s3://{source.bucket}/"):
        settings = settings_of(tmp_path / str(len(url)), url)
        assert fetch_deliveries(source.client, settings, FLIGHTS) == [DAY]


def test_an_object_that_changes_before_it_is_read_is_refused_by_name(source: Source) -> None:
    source.put(ONE)
    source.fetch()
    before = source.landed()
    source.put({"departures.csv": "year\n2014\n"})
    client = source.client
    reads_of(client, lambda name: source.put({"departures.csv": "year\n2015\n"}))
    with pytest.raises(DeliveryError) as caught:
        source.fetch(client)
    assert caught.value.delivery == f"s3://{source.bucket}/in/flights/{DAY}/departures.csv"
    assert caught.value.reason == "changed while it was read"
    assert source.landed() == before
    assert source.fetch() == [DAY]
    assert source.landed()[f"{DAY}/departures.csv"] == "year\n2015\n"


@pytest.mark.parametrize("name", ["departures.csv", "departures-2.csv"])
def test_a_delivery_that_changes_after_it_was_read_is_refused_by_name(source: Source, name: str) -> None:
    source.put(ONE)
    client = source.client
    reads_of(client, lambda read: source.put({name: "year\n2015\n"}) if read == "_SUCCESS" else None)
    with pytest.raises(DeliveryError, match=rf"{DAY}/{name}: changed while it was read"):
        source.fetch(client)
    assert source.landed() == {}
    assert source.fetch() == [DAY]


def test_an_object_that_is_taken_away_is_refused_by_name(source: Source) -> None:
    source.put(ONE)
    key = f"in/flights/{DAY}/departures.csv"
    client = source.client
    reads_of(client, lambda name: source.client.delete_object(Bucket=source.bucket, Key=key))
    with pytest.raises(DeliveryError, match=r"departures\.csv: changed while it was read"):
        source.fetch(client)
    assert source.landed() == {}


def test_a_fetch_that_was_stopped_goes_on_where_it_was(source: Source) -> None:
    source.put({**ONE, "departures-2.csv": "year\n", "departures-3.csv": "year\n"})
    fetch_until(source, "departures-3.csv")
    assert source.landed() == {}
    assert find_deliveries(source.settings, FLIGHTS) == []

    client = source.client
    reads = reads_of(client)
    assert source.fetch(client) == [DAY]
    assert reads == ["departures-3.csv", "departures.csv", "_SUCCESS"]
    assert len(find_delivery(source.settings, FLIGHTS, DAY).files) == 3


def test_what_a_stopped_fetch_left_of_an_older_content_is_not_used(source: Source) -> None:
    source.put(ONE)
    fetch_until(source, "_SUCCESS")
    source.put({"departures.csv": "year\n2016\n"})
    assert source.fetch() == [DAY]
    assert source.landed()[f"{DAY}/departures.csv"] == "year\n2016\n"
    assert list((source.settings.landing / "flights").glob(".s3-*")) == []


def test_a_delivery_moved_away_by_a_crash_is_put_back_when_its_successor_does_not_come(
    source: Source,
) -> None:
    source.put(ONE)
    source.fetch()
    before = source.landed()
    place = source.settings.landing / "flights" / DAY
    place.rename(place.with_name(f".s3-{DAY}-old"))
    source.put({"departures.csv": "year\n2014\n"})
    client = source.client
    reads_of(client, lambda name: source.put({"departures.csv": "year\n2015\n"}))
    with pytest.raises(DeliveryError):
        source.fetch(client)
    assert source.landed() == before


def test_while_another_process_fetches_nothing_is_done(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.put(ONE)
    caplog.set_level(logging.INFO)
    with hold_lock(source.settings.landing / "flights" / ".s3.lock", wait_s=0):
        assert source.fetch() == []
    assert "being fetched by another process" in caplog.text
    assert source.fetch() == [DAY]


def test_a_delivery_that_cannot_be_taken_keeps_no_other_from_being_taken(source: Source) -> None:
    source.put({**ONE, "more/departures.csv": "x"})
    source.put(ONE, "2013-01-02")
    with pytest.raises(DeliveryError, match=rf"in/flights/{DAY}/more/departures\.csv"):
        source.fetch()
    assert sorted(source.landed()) == ["2013-01-02/_SUCCESS", "2013-01-02/departures.csv"]


@pytest.mark.parametrize(
    "name", ["../up.csv", "..", "/etc/up.csv", "..\\up.csv", "a\\up.csv", "a/../../up", "up" * 121, "a\n"]
)
def test_a_name_that_would_leave_the_folder_is_refused_by_name(tmp_path: Path, name: str) -> None:
    # SeaweedFS holds no such keys, AWS does: the client is real, what it is answered is written here.
    client = a_client("http://127.0.0.1:9", S3User("a", "b"))
    now = dt.datetime.now(dt.UTC)
    keys = [f"in/flights/{DAY}/{name}", f"in/flights/{DAY}/departures.csv", f"in/flights/{DAY}/_SUCCESS"]
    contents = [{"Key": key, "Size": 1, "ETag": '"e"', "LastModified": now} for key in keys]
    settings = settings_of(tmp_path, "s3://bucket/in")
    stub = Stubber(client)
    stub.add_response("list_objects_v2", {"Contents": contents, "IsTruncated": False})
    with stub, pytest.raises(DeliveryError) as caught:
        fetch_deliveries(client, settings, FLIGHTS)
    assert repr(name) in caught.value.reason
    assert find_deliveries(settings, FLIGHTS) == []
    assert list(tmp_path.rglob("*up*")) == []


def test_a_store_that_refuses_to_be_read_is_asked_once_not_once_a_delivery(source: Source) -> None:
    for day in ("2013-01-01", "2013-01-02", "2013-01-03"):
        source.put(ONE, day)
    client = source.s3.client(source.s3.lister)
    reads = reads_of(client)
    with pytest.raises(StoreError, match=rf"{source.bucket}/in/.*departures\.csv: access is denied"):
        source.fetch(client)
    assert reads == ["departures.csv"]
    assert source.landed() == {}


@pytest.mark.parametrize(
    ("user", "reason", "fix"),
    [
        (S3Server.stranger, "access is denied", "s3:ListBucket"),
        (S3User("AKADMIN", "wrong"), "the secret key does not belong", "AWS_SECRET_ACCESS_KEY"),
        (S3User("AKNOBODY", "wrong"), "the access key is not known there", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_who_may_not_read_is_told_so(source: Source, user: S3User, reason: str, fix: str) -> None:
    source.put(ONE)
    source.fetch()
    before = source.landed()
    with pytest.raises(DeliveryError) as caught:
        source.fetch(source.s3.client(user))
    assert source.bucket in caught.value.delivery
    assert reason in caught.value.reason
    assert fix in caught.value.fix
    assert source.landed() == before


def test_a_bucket_that_is_not_there_is_named(source: Source, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "s3://nowhere/in")
    with pytest.raises(DeliveryError, match=r"s3://nowhere/in.*no such bucket.*LAKESHARE_LANDING_S3"):
        fetch_deliveries(source.client, settings, FLIGHTS)


def test_an_endpoint_that_does_not_answer_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    client = a_client(f"http://127.0.0.1:{port}", S3User("a", "b"))
    with pytest.raises(DeliveryError, match=rf"did not answer.*127\.0\.0\.1:{port}.*LANDING_S3_ENDPOINT"):
        fetch_deliveries(client, settings_of(tmp_path, "s3://bucket"), FLIGHTS)


def test_a_landing_folder_that_cannot_be_written_is_named(source: Source) -> None:
    source.put(ONE)
    source.settings.landing.parent.mkdir(parents=True, exist_ok=True)
    source.settings.landing.write_text("a file")
    with pytest.raises(DeliveryError, match=r"cannot be copied to .*landing.*LAKESHARE_LANDING_DIR"):
        source.fetch()


@pytest.mark.parametrize("value", ["bucket/prefix", "s3://", "s3:///prefix", "https://bucket"])
def test_a_landing_that_is_no_s3_url_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValueError, match="landing_s3"):
        settings_of(tmp_path, value)


def test_a_link_in_place_of_a_delivery_is_replaced_and_what_it_leads_to_stays(
    source: Source, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "departures.csv").write_text("not delivered\n")
    source.put(ONE)
    fetch_until(source, "_SUCCESS")
    root = source.settings.landing / "flights"
    (root / DAY).symlink_to(outside)
    for scratch in list(root.glob(f".s3-{DAY}-*")):
        shutil.rmtree(scratch)
        scratch.symlink_to(outside)
    assert source.fetch() == [DAY]
    assert source.landed() == {f"{DAY}/{name}": text for name, text in ONE.items()}
    source.put({"departures.csv": "year\n2014\n"})
    assert source.fetch() == [DAY]
    assert source.landed()[f"{DAY}/departures.csv"] == "year\n2014\n"
    assert [path.name for path in outside.iterdir()] == ["departures.csv"]
    assert (outside / "departures.csv").read_text() == "not delivered\n"
