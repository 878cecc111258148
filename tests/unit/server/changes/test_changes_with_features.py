"""Deletion vectors, mapped names, row tracking, older writers: what tables can do shows in their changes."""

from typing import Any

import pytest

from lakeshare_server.errors import TableFilesMissing, Unserveable
from tests.builders import delta_log
from tests.builders.change_responses import answer, expected, in_order, told, url
from tests.builders.deletion_vector import inline_descriptor
from tests.builders.written_log import WrittenLog, add, bare_remove, metadata, protocol, remove

STORED = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
VECTORS = ("deletionVectors", "changeDataFeed")


def test_deletion_vectors_come_in_pairs_as_the_log_has_them(log: WrittenLog, read: Any) -> None:
    """protocol §2.3, §11 DV in streaming and CDF: without cdc files clients compare the vectors of both lines."""
    inline = inline_descriptor([1, 3])
    log.commit(protocol(features=VECTORS), metadata(), add("1"))
    log.commit(remove("1"), add("1", deletionVector=inline))
    log.commit(remove("1", deletionVector=inline), add("1", deletionVector=STORED))
    changes = read(log.location, 0, 2)
    wanted = [
        expected(log.location, version, kind, action, "delta", changes[version].timestamp_ms)
        for version, kind, action in delta_log.changes(log.location, 0, 2)
    ]
    for feed in (True, False):
        lines = told(answer(changes, feed=feed))
        assert in_order(lines) == in_order(wanted)
    assert sum("deletionVectorFileId" in line["file"] for line in lines) == 1
    [hindrance] = changes[0].head.hindrances
    assert hindrance.feature == "deletionVectors"


def test_what_hinders_one_version_hinders_the_range(log: WrittenLog, read: Any) -> None:
    """protocol §2.5: an answer has one format; parquet cannot carry a range in which a version needs more."""
    log.commit(protocol(), metadata(), add("0"))
    mapped = {**metadata()["metaData"]["configuration"], "delta.columnMapping.mode": "name"}
    log.commit(protocol(2, 5), metadata(mapped))
    assert [one.feature for one in read(log.location, 0, 1)[0].head.hindrances] == ["columnMapping"]
    assert not read(log.location, 0, 0)[0].head.hindrances


def test_partition_values_keep_the_names_of_the_log(log: WrittenLog, read: Any) -> None:
    """protocol §2.2: with column mapping, keys are physical names; §11 column mapping in streaming and CDF."""
    fields = [
        {"name": name, "type": "string", "nullable": True,
         "metadata": {"delta.columnMapping.physicalName": f"col-{name}", "delta.columnMapping.id": place}}
        for place, name in enumerate(("id", "p"), 1)
    ]  # fmt: skip
    mode = {"delta.enableChangeDataFeed": "true", "delta.columnMapping.mode": "name"}
    given = metadata(mode, schema={"type": "struct", "fields": fields})
    log.commit(protocol(2, 5), given, add("1", partitionValues={"col-p": ""}))
    [line] = told(answer(read(log.location, 0, 0), feed=True))
    assert line["file"]["deltaSingleAction"]["add"]["partitionValues"] == {"col-p": ""}


TRACKED = {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"}


def test_row_tracking_is_passed_on_or_not_announced(log: WrittenLog, read: Any) -> None:
    """protocol §0.18, §11 row tracking pass-through: in every add and remove, or nowhere."""
    ids = {"baseRowId": 10, "defaultRowCommitVersion": 0}
    features = ("rowTracking", "domainMetadata", "changeDataFeed")
    log.commit(protocol(features=features), metadata(TRACKED), add("1", **ids))
    log.commit(remove("1", **ids), add("2", baseRowId=20, defaultRowCommitVersion=1))
    log.commit(remove("2"))
    changes = read(log.location, 0, 1)
    assert all(one.head.configuration["delta.enableRowTracking"] == "true" for one in changes)
    for line in told(answer(changes, feed=True)):
        [action] = line["file"]["deltaSingleAction"].values()
        assert {"baseRowId", "defaultRowCommitVersion"} <= set(action)
    for one in read(log.location, 0, 2):
        assert "delta.enableRowTracking" not in one.head.configuration
        assert "rowTracking" not in (one.head.protocol.writer_features or ())


def test_removes_of_older_writers_get_size_and_values_of_their_adds(log: WrittenLog, read: Any) -> None:
    """protocol §2.1, §6.2: `remove` has a size, that of the object."""
    log.commit(protocol(), metadata(), add("early", size=1, partitionValues={"p": None}))
    for version in range(1, 100):
        log.commit(add(f"{version}", size=version))
    log.commit(bare_remove("early"), add("late", size=2))
    log.commit(bare_remove("late"))
    lines = told(answer(read(log.location, 100, 101), feed=True), "parquet")
    removes = [line["remove"] for line in lines if "remove" in line]
    assert [(one["size"], one["partitionValues"]) for one in removes] == [(1, {"p": None}), (2, {"p": "a b"})]
    [_, early, _] = told(answer(read(log.location, 100, 101), feed=True), "delta")
    assert early["file"]["deltaSingleAction"]["remove"]["extendedFileMetadata"] is True


def test_a_remove_of_nothing_known_is_refused_where_it_is_told(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata(), add("1"))
    log.commit(bare_remove("never added"))
    log.commit(add("2"))
    with pytest.raises(TableFilesMissing, match="never added"):
        read(log.location, 0, 2)
    assert [one.version for one in read(log.location, 2, 2)] == [2]
    assert [one.version for one in read(log.location, 0, 0)] == [0]


def test_a_version_of_an_unknown_feature_is_refused(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata())
    known = protocol(features=VECTORS)["protocol"]
    log.commit({"protocol": {**known, "readerFeatures": ["new"]}})
    with pytest.raises(Unserveable, match="new"):
        read(log.location, 0, 1)


def test_files_elsewhere_are_told_with_their_store(log: WrittenLog, read: Any) -> None:
    log.commit(protocol(), metadata(), add("s3://bucket/a%20b"), add("1"))
    changes = read(log.location, 0, 0)
    wanted = answer(changes, feed=True)
    assert {root for one in changes for root in one.roots} == {"", "s3://bucket"}
    assert (wanted.files, wanted.size_bytes) == (2, 200)
    assert told(wanted, "parquet")[0]["add"]["url"] == url("s3://bucket/a b")
