"""Completion reports are read as AWS writes them and as it declares them, and ours are read back as they were."""

import json
from hashlib import md5
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest

from lakeshare_pipelines.backup.copy.engine import RESULTS, find_report, read_results, write_report
from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.errors import BackupError

AWS_ROWS = """\
lake,t/part-00000,,succeeded,200,,Successful
lake,a%20b,3HL4kqtJ,failed,404,NoSuchKey,"The key, or ""part"" of it,
is gone"
lake,big,,failed,400,InvalidRequest,"The specified copy source is larger than the maximum allowable size"
"""
DECLARED_ROWS = """\
lake,t/part-00000,,succeeded,,200,Successful
lake,a%20b,3HL4kqtJ,failed,NoSuchKey,404,"The key, or ""part"" of it,
is gone"
lake,big,,failed,InvalidRequest,400,"The specified copy source is larger than the maximum allowable size"
"""
SHOWN = ("bucket", "key", "version_id", "status", "error_code", "http_status", "message")
WANTED = [
    ("lake", "t/part-00000", None, "succeeded", None, None, None),
    ("lake", "a%20b", "3HL4kqtJ", "failed", "NoSuchKey", 404, 'The key, or "part" of it,\nis gone'),
    (
        "lake",
        "big",
        None,
        "failed",
        "InvalidRequest",
        400,
        "The specified copy source is larger than the maximum allowable size",
    ),
]


@pytest.fixture
def store(tmp_path: Path) -> BackupStore:
    return open_store(StoreAddress(url=str(tmp_path)))


def put_report(
    store: BackupStore, rows: str, name: str = "manifest.json", checksum: str | None = None
) -> str:
    """A report of one file, in the layout of AWS."""
    key, content = "r/job-7/results/one.csv", rows.encode()
    store.put(key, content)
    result = {
        "TaskExecutionStatus": "failed",
        "Bucket": "vault",
        "MD5Checksum": checksum or md5(content, usedforsecurity=False).hexdigest(),
        "Key": key,
    }
    manifest = {"Format": "Report_CSV_20180820", "Results": [result]}
    store.put(f"r/job-7/{name}", json.dumps(manifest).encode())
    return f"r/job-7/{name}"


@pytest.mark.parametrize("rows", [AWS_ROWS, DECLARED_ROWS], ids=["as written", "as declared"])
@pytest.mark.parametrize("name", ["manifest.json", "report.json"])
def test_both_orders_of_columns_and_both_names_are_understood(
    store: BackupStore, rows: str, name: str
) -> None:
    put_report(store, rows, name)
    key = find_report(store, "r/", "7")
    assert key is not None
    rows = read_results(store, key).to_pylist()
    assert [tuple(row[name] for name in SHOWN) for row in rows] == WANTED


def test_a_job_of_which_no_task_ran_has_no_report(store: BackupStore) -> None:
    assert find_report(store, "r/", "7") is None


def test_our_own_reports_are_read_back(store: BackupStore) -> None:
    keys = ["a b", "a+b", "ü/ñ %20", 'q"uot,a\n', "plain/x.parquet"]
    rows = [
        {
            "bucket": "lake",
            "key": key,
            "version_id": None,
            "stored_key": f"objects/{key}",
            "status": "failed" if number % 2 else "succeeded",
            "error_code": "NoSuchKey" if number % 2 else None,
            "http_status": 404 if number % 2 else None,
            "message": f'no "{key}",\nsorry' if number % 2 else None,
        }
        for number, key in enumerate(keys)
    ]
    location = write_report(store, "work/", "abc", [pa.RecordBatch.from_pylist(rows, RESULTS)])
    assert location.endswith("/work/job-abc/manifest.json")
    read = read_results(store, "work/job-abc/manifest.json").to_pylist()
    results = {unquote(one["key"]): one for one in read}
    assert set(results) == set(keys)
    for row in rows:
        found = results[str(row["key"])]
        for name in ("status", "error_code", "message"):
            assert found[name] == row[name]


@pytest.mark.parametrize(
    ("rows", "checksum", "words"),
    [
        (AWS_ROWS, "0" * 32, "its MD5 is not"),
        ("lake,key,,succeeded,200\n", None, "row 1 has 5 columns, not 7"),
    ],
)
def test_a_report_that_is_not_what_it_says_is_refused(
    store: BackupStore, rows: str, checksum: str | None, words: str
) -> None:
    key = put_report(store, rows, checksum=checksum)
    with pytest.raises(BackupError, match=words):
        read_results(store, key)


def test_a_report_without_its_results_is_refused(store: BackupStore) -> None:
    key = put_report(store, AWS_ROWS)
    store.delete("r/job-7/results/one.csv")
    with pytest.raises(BackupError, match=r"results .* are not there"):
        read_results(store, key)
    store.put(key, b'{"Results": [{}]}')
    with pytest.raises(BackupError, match="no manifest of a completion report"):
        read_results(store, key)
