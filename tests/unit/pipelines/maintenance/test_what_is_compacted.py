"""Which files compaction rewrites, and what an Iceberg table's metadata has without some snapshots."""

import json

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from lakeshare_pipelines.contracts import Table
from lakeshare_pipelines.errors import MaintenanceError
from lakeshare_pipelines.maintenance.compaction import find_small_files, require_simple
from lakeshare_pipelines.maintenance.expiry import write_metadata_without
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores

CASES = {
    "five small files of a partition": (["a"] * 5, [1] * 5, [True] * 5),
    "four of them": (["a"] * 4, [1] * 4, [False] * 4),
    "five in two partitions": (["a", "a", "a", "b", "b"], [1] * 5, [False] * 5),
    "those of the right size stay": (["a"] * 6, [1, 75, 1, 1, 1, 1], [True, False, True, True, True, True]),
    "none": ([], [], []),
}


@pytest.mark.parametrize(("partitions", "sizes", "expected"), CASES.values(), ids=CASES)
def test_files_under_three_quarters_of_the_target_are_rewritten_from_five_of_a_partition_on(
    partitions, sizes, expected
):
    assert find_small_files(partitions, sizes, 100) == expected


@pytest.mark.parametrize(
    "protocol",
    [
        {"minWriterVersion": 5},
        {"minWriterVersion": 7, "writerFeatures": ["appendOnly", "rowTracking"]},
        {"minWriterVersion": 7, "writerFeatures": ["columnMapping"]},
        {"minWriterVersion": 7, "writerFeatures": ["clustering", "domainMetadata"]},
        {"minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]},
    ],
)
def test_delta_tables_whose_commits_need_more_are_left_to_their_engine(protocol):
    table = Table("lake.orders", "delta", ())
    with pytest.raises(MaintenanceError, match="OPTIMIZE"):
        require_simple(table, protocol)
    require_simple(table, {"minWriterVersion": 4})
    require_simple(table, {"minWriterVersion": 7, "writerFeatures": ["appendOnly", "deletionVectors"]})


def test_metadata_without_a_snapshot_is_its_next_file_and_loses_nothing_else(tmp_path):
    stores = Stores(StoreSettings(_env_file=None))
    snapshots = [
        {
            "snapshot-id": number,
            "timestamp-ms": number,
            "manifest-list": f"/t/{number}.avro",
            "sequence-number": number,
        }
        | {"summary": {"operation": "append"}, "schema-id": 0}
        for number in (1, 2, 3)
    ]
    sizes = {"file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    statistics = [
        {"snapshot-id": number, "statistics-path": f"/t/{number}.puffin", **sizes} for number in (2, 3)
    ]
    metadata = {
        "format-version": 2,
        "table-uuid": "00000000-0000-0000-0000-000000000001",
        "location": "/t",
        "last-sequence-number": 3,
        "last-updated-ms": 3,
        "last-column-id": 1,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {"write.metadata.previous-versions-max": "2"},
        "current-snapshot-id": 3,
        "refs": {"main": {"snapshot-id": 3, "type": "branch"}},
        "snapshots": snapshots,
        "statistics": statistics,
        "snapshot-log": [{"snapshot-id": number, "timestamp-ms": number} for number in (1, 2, 3)],
        "metadata-log": [{"metadata-file": f"/t/{number}", "timestamp-ms": number} for number in (1, 2)],
        "of-a-later-specification": {"is": "kept"},
    }
    before = f"{tmp_path}/00007-a.metadata.json"
    stores.write(before, json.dumps(metadata).encode())
    assert write_metadata_without(stores, before, []) == before

    after = write_metadata_without(stores, before, [2])

    assert after.startswith(f"{tmp_path}/00008-")
    written = json.loads(stores.read(after))
    different = {name for name in metadata if written[name] != metadata[name]}
    assert different == {"snapshots", "statistics", "snapshot-log", "metadata-log", "last-updated-ms"}
    assert written["snapshots"] == [snapshots[0], snapshots[2]]
    assert written["statistics"] == statistics[1:]
    # A history with a gap begins after it (Iceberg spec, "Table Metadata Fields", snapshot-log).
    assert written["snapshot-log"] == [{"snapshot-id": 3, "timestamp-ms": 3}]
    assert [entry["metadata-file"] for entry in written["metadata-log"]] == ["/t/2", before]
    assert TableMetadataUtil.parse_raw(stores.read(after).decode()).snapshot_by_id(2) is None
