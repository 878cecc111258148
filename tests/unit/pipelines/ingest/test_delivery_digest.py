"""The digest of a delivery is its content: the same rows again have the same one, any other byte another."""

import os
import shutil
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.errors import DeliveryError
from lakeshare_pipelines.ingest import (
    Delivery,
    blame_changed_delivery,
    find_deliveries,
    find_delivery,
    require_unchanged,
)
from lakeshare_pipelines.settings import LakeSettings

FLIGHTS, _ = load_contracts()


def a_delivery(tmp_path: Path, files: dict[str, str], day: str = "2013-01-01") -> Delivery:
    settings = LakeSettings(_env_file=None, state_dir=tmp_path)
    folder = Path(settings.landing_root) / "flights" / day
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "_SUCCESS").touch()
    return find_delivery(settings, FLIGHTS, day)


def test_the_same_files_delivered_again_have_the_same_digest(tmp_path: Path) -> None:
    files = {"departures.csv": "year\n2013\n", "departures-2.csv": "year\n2014\n"}
    first = a_delivery(tmp_path, files)
    again = a_delivery(tmp_path, dict(reversed(files.items())))
    elsewhere = a_delivery(tmp_path / "other", files, "2013-05-05")
    assert first.digest == again.digest == elsewhere.digest


@pytest.mark.parametrize(
    "files",
    [
        {"departures.csv": "year\n2014\n"},
        {"departures-1.csv": "year\n2013\n"},
        {"departures.csv": "year\n2013\n", "departures-2.csv": "year\n"},
        {"departures.csv": "year\n2013"},
    ],
)
def test_another_byte_name_or_file_is_another_digest(tmp_path: Path, files: dict[str, str]) -> None:
    assert (
        a_delivery(tmp_path, {"departures.csv": "year\n2013\n"}).digest != a_delivery(tmp_path, files).digest
    )


def test_markers_do_not_count(tmp_path: Path) -> None:
    delivery = a_delivery(tmp_path, {"departures.csv": "year\n"})
    (Path(delivery.location) / "_SUCCESS").write_text("done at noon")
    require_unchanged(delivery)


def test_a_delivery_that_is_not_complete_has_no_digest_yet(tmp_path: Path) -> None:
    delivery = a_delivery(tmp_path, {"departures.csv": "year\n"})
    (Path(delivery.location) / "_SUCCESS").unlink()
    settings = LakeSettings(_env_file=None, state_dir=tmp_path)
    assert find_deliveries(settings, FLIGHTS)[0].digest == ""


def _append(path: Path) -> None:
    path.write_text(path.read_text() + "x")


def _swap_a_byte_and_keep_size_and_time(path: Path) -> None:
    stat = path.stat()
    with path.open("r+b") as file:
        file.write(b"Y")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _add_a_file(path: Path) -> None:
    path.with_name("departures-2.csv").write_text("year\n")


def _remove_the_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    "change", [_append, _swap_a_byte_and_keep_size_and_time, Path.unlink, _add_a_file, _remove_the_folder]
)
def test_a_delivery_that_changes_after_it_was_found_is_refused(tmp_path: Path, change: object) -> None:
    delivery = a_delivery(tmp_path, {"departures.csv": "year\n2013\n"})
    require_unchanged(delivery)
    assert callable(change)
    change(Path(delivery.files[0].location))
    with pytest.raises(DeliveryError, match="changed while it was read"):
        require_unchanged(delivery)


def _read_after_it_went_away(path: Path) -> None:
    path.unlink()
    path.read_text()


def test_a_reading_that_fails_because_the_delivery_went_away_says_so(tmp_path: Path) -> None:
    delivery = a_delivery(tmp_path, {"departures.csv": "year\n"})
    with pytest.raises(DeliveryError, match="changed while it was read"), blame_changed_delivery([delivery]):
        _read_after_it_went_away(Path(delivery.files[0].location))


def test_a_reading_that_fails_for_another_reason_keeps_it(tmp_path: Path) -> None:
    delivery = a_delivery(tmp_path, {"departures.csv": "year\n"})
    with pytest.raises(OSError, match="out of memory"), blame_changed_delivery([delivery]):
        raise OSError("out of memory")
