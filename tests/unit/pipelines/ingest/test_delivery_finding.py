"""A delivery is found when it is whole, in stable order, and refused with a remedy when it is not."""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import SetContract, load_contracts
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import find_deliveries, find_delivery
from lakeshare_pipelines.ingest.landing import DeliveredFile, FolderLanding
from lakeshare_pipelines.settings import LakeSettings

FLIGHTS, REFERENCE = load_contracts()
DAY = "2013-01-01"
HOUR_S = 3600


def settings_of(tmp_path: Path, quiet_s: int = HOUR_S) -> LakeSettings:
    return LakeSettings(_env_file=None, state_dir=tmp_path, quiet_s=quiet_s)


def put(
    settings: LakeSettings,
    files: Mapping[str, str | bytes],
    partition: str = DAY,
    contract: SetContract = FLIGHTS,
) -> Path:
    """Write files into landing as they are."""
    folder = Path(settings.landing_root) / contract.name / partition
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def manifest(**files: dict[str, object]) -> str:
    return json.dumps(
        {"files": [{"name": name.replace("__", "."), **entry} for name, entry in files.items()]}
    )


ONE = {"departures.csv": "year\n2013\n", "_SUCCESS": ""}


def test_success_makes_a_delivery_complete(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    folder = put(settings, ONE)
    delivery = find_delivery(settings, FLIGHTS, DAY)
    assert (delivery.set_name, delivery.partition, delivery.location) == ("flights", DAY, str(folder))
    assert [file.location for file in delivery.files] == [str(folder / "departures.csv")]
    assert delivery.complete


def test_without_success_it_is_complete_after_the_quiet_time(tmp_path: Path) -> None:
    put(settings_of(tmp_path), {"departures.csv": "year\n"})
    with pytest.raises(DeliveryError, match=r"is not complete.*_SUCCESS.*3600 s"):
        find_delivery(settings_of(tmp_path), FLIGHTS, DAY)
    assert find_delivery(settings_of(tmp_path, quiet_s=0), FLIGHTS, DAY).complete


def test_the_quiet_time_counts_from_the_arrival_and_not_from_a_time_the_sender_kept(tmp_path: Path) -> None:
    folder = put(settings_of(tmp_path), {"departures.csv": "year\n"})
    os.utime(folder / "departures.csv", (0, 0))
    os.utime(folder, (0, 0))
    assert not find_deliveries(settings_of(tmp_path), FLIGHTS)[0].complete


def test_a_manifest_makes_a_delivery_complete_when_all_its_files_are_there(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    text = "year\n2013\n"
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    # As PowerShell writes it: with a mark of UTF-8, and hexadecimal digits in capitals.
    listed = "\ufeff" + manifest(departures__csv={"size": len(text), "sha256": sha256.upper()})
    folder = put(settings, {"_manifest.json": listed, "departures.csv": text[:3]})
    with pytest.raises(DeliveryError, match="still to come"):
        find_delivery(settings, FLIGHTS, DAY)
    (folder / "departures.csv").write_text(text)
    assert find_delivery(settings, FLIGHTS, DAY).complete


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"_manifest.json": manifest(departures__csv={"size": 3})},
            "departures.csv has 10 bytes, _manifest.json has 3",
        ),
        ({"_manifest.json": manifest(departures__csv={"sha256": "0" * 64})}, "another SHA-256"),
        (
            {"_manifest.json": manifest(departures__csv={}), "departures-2.csv": "year\n"},
            "departures-2.csv is not in _manifest.json",
        ),
        ({"_manifest.json": '{"files": ["departures.csv"]}'}, "does not list files by name"),
        ({"_manifest.json": "[]"}, "does not list files by name"),
        ({"_manifest.json": "{"}, "cannot be read"),
        ({"_manifest.json": "[" * 100_000}, "cannot be read: maximum recursion depth exceeded"),
        ({"_manifest.json": " " * ((64 << 20) + 1)}, "it has more than 64 MiB"),
    ],
)
def test_a_delivery_that_is_not_what_its_manifest_says_is_refused(
    tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    settings = settings_of(tmp_path)
    put(settings, {"departures.csv": "year\n2013\n", **files})
    with pytest.raises(DeliveryError) as caught:
        find_delivery(settings, FLIGHTS, DAY)
    assert reason in caught.value.reason
    assert caught.value.subject == f"flights/{DAY}"
    assert "_manifest.json" in caught.value.fix or "Write it as" in caught.value.fix


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"_SUCCESS": ""}, "is empty"),
        ({"_SUCCESS": "", "departures.csv": ""}, "is empty"),
        ({**ONE, "departure.csv": "x\n"}, "departure.csv belongs to no table of the set"),
        ({**ONE, "departures.xlsx": "x"}, "departures.xlsx is of no known format"),
        ({**ONE, "departures-*.csv": "x\n"}, "has unusual characters"),
        ({"_SUCCESS": "", "readme.csv": "x\n"}, "readme.csv belongs to no table"),
    ],
)
def test_a_delivery_with_files_that_nobody_can_place_is_refused(
    tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    settings = settings_of(tmp_path)
    put(settings, files)
    with pytest.raises(DeliveryError) as caught:
        find_delivery(settings, FLIGHTS, DAY)
    assert reason in caught.value.reason
    assert caught.value.fix


def test_a_folder_or_dead_link_among_the_files_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    folder = put(settings, ONE)
    (folder / "departures-2.csv").symlink_to(Path(settings.landing_root) / "nowhere")
    with pytest.raises(DeliveryError, match="is not a file"):
        find_delivery(settings, FLIGHTS, DAY)


def test_all_tables_of_a_set_arrive_together(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    files = {f"{name}.csv": "x\n1\n" for name in ("airlines", "airports", "planes")}
    put(settings, {**files, "_SUCCESS": ""}, "all", REFERENCE)
    with pytest.raises(DeliveryError, match=r"holds no file for table reference\.weather"):
        find_delivery(settings, REFERENCE, "all")


@pytest.mark.parametrize(
    "name",
    [
        "departures.csv",
        "departures.csv.gz",
        "departures-0001.csv",
        "departures.tsv.gz",
        "departures.jsonl",
        "departures.ndjson.gz",
        "departures.jsonl.zst",
        "departures.csv.bz2",
        "departures.parquet",
        "departures.avro",
    ],
)
def test_files_are_matched_by_stem_in_every_format(tmp_path: Path, name: str) -> None:
    settings = settings_of(tmp_path)
    put(settings, {name: "x\n", "_SUCCESS": ""})
    assert [file.name for file in find_delivery(settings, FLIGHTS, DAY).files] == [name]


def test_hidden_and_marker_files_are_no_data(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    put(settings, {**ONE, ".departures.csv.part": "x", "_notes.txt": "x"})
    assert [file.name for file in find_delivery(settings, FLIGHTS, DAY).files] == ["departures.csv"]


@pytest.mark.parametrize("partition", ["2013-01-02", "2012-12-31", "all", "../flights", "2013-1-1"])
def test_a_partition_that_has_not_arrived_or_is_none_is_refused(tmp_path: Path, partition: str) -> None:
    settings = settings_of(tmp_path)
    put(settings, ONE)
    with pytest.raises(DeliveryError, match=r"has not arrived|is no partition of set flights"):
        find_delivery(settings, FLIGHTS, partition)


def test_deliveries_come_by_partition_whatever_the_order_of_arrival(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    for day in ("2013-02-01", "2013-01-03", "2013-01-20"):
        put(settings, ONE, day)
    found = find_deliveries(settings, FLIGHTS)
    assert [delivery.partition for delivery in found] == ["2013-01-03", "2013-01-20", "2013-02-01"]


def test_the_list_has_incomplete_and_broken_deliveries_but_no_strangers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(tmp_path)
    put(settings, {"departures.csv": "x\n"}, "2013-01-01")
    put(settings, {"unknown.csv": "x\n", "_SUCCESS": ""}, "2013-01-02")
    put(settings, {"_manifest.json": "[" * 100_000, "departures.csv": "x\n"}, "2013-01-03")
    put(settings, ONE, "january")
    put(settings, {}, "2013-01-04")
    (Path(settings.landing_root) / "flights" / ".2013-01-05-half").mkdir()
    (Path(settings.landing_root) / "flights" / "notes.txt").write_text("x")
    found = {delivery.partition: delivery.complete for delivery in find_deliveries(settings, FLIGHTS)}
    assert found == {"2013-01-01": False, "2013-01-02": True, "2013-01-03": True}
    assert "january is no partition of set flights" in caplog.text


def test_a_delivery_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(tmp_path)
    unreadable = put(settings, ONE, "2013-01-01")
    put(settings, ONE, "2013-01-02")

    compute_sha256 = FolderLanding.compute_sha256

    def sha256_of(landing: FolderLanding, file: DeliveredFile) -> str:
        if file.location.startswith(str(unreadable)):  # tests may run as root, whom no permission stops
            raise PermissionError(errno.EACCES, "Permission denied", file.location)
        return compute_sha256(landing, file)

    monkeypatch.setattr(FolderLanding, "compute_sha256", sha256_of)
    assert [found.partition for found in find_deliveries(settings, FLIGHTS)] == ["2013-01-02"]
    assert f"{unreadable} cannot be read" in caplog.text
    with pytest.raises(DeliveryError, match=r"cannot be read: Permission denied.*permissions"):
        find_delivery(settings, FLIGHTS, "2013-01-01")


def test_nothing_in_landing_is_no_error(tmp_path: Path) -> None:
    assert find_deliveries(settings_of(tmp_path), FLIGHTS) == []
