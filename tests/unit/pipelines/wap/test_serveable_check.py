"""The check `serveable`: a missed promise, what cannot be published, and what a person reads of both."""

import json
from pathlib import Path

import pytest

from lakeshare_pipelines.contracts.model import Promise
from lakeshare_pipelines.defs.wap import check_metadata
from lakeshare_pipelines.wap.serveable import ClientMatrix, check_serveable, compute_delta_matrix
from lakeshare_pipelines.wap.staged import Finding, Staged, StagedTable, Verdict
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import Stores
from lakeshare_server.tables.snapshot import Hindrance, TableHead
from tests.builders.written_log import SCHEMA, WrittenLog, add, metadata, protocol

STORES = Stores(ServerSettings())
DELETES = Hindrance("deletionVectors", "has deletion vectors on 2 files", "Mend it.", "ROW_LEVEL_DELETES")
WITHOUT_ZONE = Hindrance("timestampNtz", "has times without a zone", "Cast.", "TIMESTAMPS_WITHOUT_ZONE")
REFUSED = ClientMatrix.of_refused(
    Unserveable("/lake/t has equality deletes.", "Rewrite.", "EQUALITY_DELETES")
)
VECTOR = {
    "storageType": "p",
    "pathOrInlineDv": "file:///v.bin",
    "offset": 1,
    "sizeInBytes": 36,
    "cardinality": 1,
}


def a_matrix(*hindrances: Hindrance) -> ClientMatrix:
    head = TableHead(table_id="t", schema_string="{}", partition_columns=(), hindrances=hindrances)
    return ClientMatrix.of("iceberg", head)


def test_a_promise_that_is_kept_passes() -> None:
    found = check_serveable(Promise(("python-delta",)), a_matrix(DELETES), ["WIDENED_TYPES"])
    assert (found.passed, found.severity) == (True, None)
    assert (found.observed["promised"], found.observed["rewritten"]) == (["python-delta"], ["WIDENED_TYPES"])


def test_without_a_promise_the_matrix_is_told_and_nothing_fails() -> None:
    found = check_serveable(Promise(), a_matrix(DELETES), ())
    assert found.passed
    assert [(row["client"], row["served as"], row["code"]) for row in found.observed["clients"]] == [
        ("python-parquet", "not", "ROW_LEVEL_DELETES"),
        ("python-delta", "delta", ""),
        ("spark", "delta", ""),
        ("iceberg-rest", "iceberg", ""),
    ]


def test_a_missed_promise_says_who_and_why_and_first_what_no_rewrite_takes_away() -> None:
    found = check_serveable(Promise(("python-parquet", "spark")), a_matrix(DELETES, WITHOUT_ZONE), ())
    assert (found.passed, found.severity) == (False, None)
    assert found.observed["reason"] == (
        "python-parquet could not read it: it has times without a zone [TIMESTAMPS_WITHOUT_ZONE]. Cast. "
        "Besides, it has deletion vectors on 2 files [ROW_LEVEL_DELETES]. Mend it."
    )
    rows = [row for row in found.observed["clients"] if row["client"] == "python-parquet"]
    assert [(row["code"], row["fix"]) for row in rows] == [
        ("ROW_LEVEL_DELETES", "Mend it."),
        ("TIMESTAMPS_WITHOUT_ZONE", "Cast."),
    ]


@pytest.mark.parametrize("promise", [Promise(), Promise(("spark",), "warning")])
def test_what_cannot_be_published_weighs_more_than_any_promise(promise: Promise) -> None:
    found = check_serveable(promise, REFUSED, ())
    assert (found.passed, found.severity) == (False, "error")
    assert found.observed["reason"] == (
        "it cannot be published: /lake/t has equality deletes [EQUALITY_DELETES]. Rewrite."
    )


def test_the_matrix_is_a_table_in_dagster() -> None:
    shown = check_metadata(a_verdict(check_serveable(Promise(), a_matrix(DELETES), ())), a_staged_set())
    lines = shown["observed/clients"].value.splitlines()
    assert lines[0] == "| client | served as | needs | code | reason | fix |"
    assert lines[2] == (
        "| python-parquet | not |  | ROW_LEVEL_DELETES | it has deletion vectors on 2 files | Mend it. |"
    )
    assert lines[3] == "| python-delta | delta | deletionVectors |  |  |  |"


def test_what_was_rewritten_survives_the_record_and_may_lack_in_older_ones() -> None:
    staged = a_staged_set(StagedTable("t", 1, rewritten=("FILE_FORMAT",)))
    record = json.loads(staged.as_json())
    assert Staged.from_record(record) == staged
    del record["tables"][0]["rewritten"]
    assert Staged.from_record(record).tables[0].rewritten == ()


def a_verdict(found: Finding) -> Verdict:
    return Verdict("t", "serveable", "error", found.passed, "", found.observed)


def a_staged_set(*tables: StagedTable) -> Staged:
    return Staged("s", "run", ("all",), "wap-s-all-run", "base", "head", tables, {}, "digest")


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    log = WrittenLog(tmp_path / "staged")
    log.commit(protocol(), metadata({}), add("new.parquet", partitionValues={"p": "today"}))
    return log.location


def a_main_table(folder: Path, configuration: dict[str, str], features: tuple[str, ...]) -> Path:
    """Rows of `yesterday` are deleted by a vector; those of `today` are not."""
    log = WrittenLog(folder / "main")
    log.commit(
        protocol(features=features),
        metadata(configuration),
        add("old.parquet", partitionValues={"p": "yesterday"}, deletionVector=VECTOR),
        add("older.parquet", partitionValues={"p": "today"}),
    )
    return log.location


def codes(clients: ClientMatrix) -> dict[str, list[str | None]]:
    return {one.id: [why.code for why in one.refused_for] for one in clients.verdicts}


@pytest.mark.parametrize(
    ("partitions", "configuration", "in_the_way"),
    [
        ({"p": ["today"]}, {}, ["ROW_LEVEL_DELETES"]),
        ({"p": ["yesterday"]}, {}, []),
        (None, {}, []),
        (None, {"delta.enableDeletionVectors": "true"}, ["ROW_LEVEL_DELETES"]),
        (None, {"delta.columnMapping.mode": "name"}, ["RENAMED_COLUMNS"]),
    ],
    ids=["another day", "the day itself", "everything", "switched on", "mapped"],
)
def test_a_delta_table_is_judged_as_the_commit_will_leave_it(
    tmp_path: Path,
    staged: Path,
    partitions: dict[str, list[str]] | None,
    configuration: dict[str, str],
    in_the_way: list[str],
) -> None:
    main = a_main_table(tmp_path, configuration, ("deletionVectors", "columnMapping"))
    found = codes(compute_delta_matrix(STORES, str(staged), str(main), 0, partitions))
    assert (found["python-parquet"], found["python-delta"], found["spark"]) == (in_the_way, [], [])


def test_a_delta_table_of_its_first_run_is_judged_by_what_is_staged(tmp_path: Path, staged: Path) -> None:
    found = codes(
        compute_delta_matrix(STORES, str(staged), str(tmp_path / "nothing"), None, {"p": ["today"]})
    )
    assert (found["python-parquet"], found["iceberg-rest"]) == ([], [None])


def test_a_delta_table_without_files_is_judged_by_what_is_staged(tmp_path: Path, staged: Path) -> None:
    log = WrittenLog(tmp_path / "main")
    log.commit(protocol(), metadata({}))
    given = STORES, str(staged), str(log.location), 0
    whole = codes(compute_delta_matrix(*given, None))
    assert codes(compute_delta_matrix(*given, {"p": ["today"]})) == whole
    # A merge into a table whose rows were all deleted.
    assert codes(compute_delta_matrix(*given, None, replaced=[])) == whole


def test_a_delta_table_gets_the_types_of_what_is_staged(tmp_path: Path, staged: Path) -> None:
    """The commit replaces the schema: a column that the contract dropped hinders nobody any more."""
    more = {"name": "at", "type": "timestamp_ntz", "nullable": True, "metadata": {}}
    log = WrittenLog(tmp_path / "main")
    log.commit(
        protocol(), metadata({}, schema={**SCHEMA, "fields": [*SCHEMA["fields"], more]}), add("o.parquet")
    )
    assert (
        codes(compute_delta_matrix(STORES, str(staged), str(log.location), 0, {"p": ["today"]}))[
            "python-parquet"
        ]
        == []
    )


def test_a_delta_table_that_the_server_does_not_know_is_refused(tmp_path: Path, staged: Path) -> None:
    log = WrittenLog(tmp_path / "main")
    unknown = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]}
    log.commit({"protocol": unknown}, metadata({}))
    clients = compute_delta_matrix(STORES, str(staged), str(log.location), 0, {"p": ["today"]})
    assert clients.is_refused
    assert "reader features x" in str(check_serveable(Promise(), clients, ()).observed["reason"])
