"""Which files beside the data a recipient of an Iceberg snapshot has to read, and nothing when that cannot be told."""

from pathlib import Path

import pytest

from lakeshare_server.errors import Unserveable
from lakeshare_server.iceberg_rest.metadata import list_readable_files
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from tests.builders.iceberg_manifests import a_manifest, a_snapshot, an_entry

STORES = Stores(ServerSettings(_env_file=None))


def test_manifests_and_live_files_of_deletes_are_named_and_no_data(tmp_path: Path) -> None:
    from pyiceberg.manifest import DataFileContent

    gone = an_entry(3, status=2, content=DataFileContent.POSITION_DELETES)
    deletes = [an_entry(2, content=DataFileContent.POSITION_DELETES), gone]
    manifests = [
        a_manifest(tmp_path / "data.avro", [an_entry(1)]),
        a_manifest(tmp_path / "deletes.avro", deletes, deletes=True),
    ]
    listed = a_snapshot(tmp_path, manifests).manifest_list
    assert list_readable_files({"manifest-list": listed}, STORES) == {
        STORES.place(listed).location,
        str(tmp_path / "data.avro"),
        str(tmp_path / "deletes.avro"),
        "s3://lake/t/2.parquet",
    }


@pytest.mark.parametrize("broken", ["list", "deletes"])
def test_a_manifest_that_is_not_whole_is_named_in_the_log_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    from pyiceberg.manifest import DataFileContent

    entries = [an_entry(2, content=DataFileContent.POSITION_DELETES)]
    manifest = a_manifest(tmp_path / "deletes.avro", entries, deletes=True)
    listed = a_snapshot(tmp_path, [manifest]).manifest_list
    place = Path(STORES.place(listed).location) if broken == "list" else tmp_path / "deletes.avro"
    place.write_bytes(place.read_bytes()[:-40])
    with pytest.raises(Unserveable, match="A manifest of the table cannot be read") as refused:
        list_readable_files({"manifest-list": listed}, STORES)
    assert str(tmp_path) not in str(refused.value)
    assert listed in caplog.text
