"""A plan's rows become jobs that S3 Batch Operations can run: one bucket, one prefix, versions in all rows or none."""

import csv
import io
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from lakeshare_pipelines.backup.copy.aws_batch import JobRows
from lakeshare_pipelines.backup.copy.engine import compute_plan_digest
from tests.builders.backup_plan import jobs_of, plan_batch, planned
from tests.builders.keys import AWKWARD_KEYS


def rows_of(jobs: list[JobRows]) -> list[tuple[tuple[str, str, bool], list[str]]]:
    return [((job.bucket, job.stored_prefix, job.has_versions), job.table["key"].to_pylist()) for job in jobs]


def lines_of(job: JobRows) -> list[list[str]]:
    return list(csv.reader(io.StringIO(job.manifest().decode())))


def test_a_manifest_has_encoded_keys_that_come_back_as_they_were() -> None:
    (job,) = jobs_of([plan_batch(*(planned(key) for key in AWKWARD_KEYS))])
    lines = lines_of(job)
    assert sorted(unquote(key) for _, key in lines) == sorted(AWKWARD_KEYS)
    assert {bucket for bucket, _ in lines} == {"lake"}
    assert not any("+" in key for _, key in lines), (
        "a plus means a space to some readers and a plus to others"
    )


def test_buckets_prefixes_and_versions_are_jobs_of_their_own() -> None:
    rows = [
        planned("a"),
        planned("b", stored_key="remade/2026-11-20/b"),
        planned("c", bucket="other"),
        planned("d", version_id="v7"),
        planned("e", is_latest=False),
        planned("f", stored_key="f"),
    ]
    jobs = jobs_of([plan_batch(*rows)])
    assert rows_of(jobs) == [
        (("lake", "", False), ["f"]),
        (("lake", "objects", False), ["a"]),
        (("lake", "objects", True), ["d", "e"]),
        (("lake", "remade/2026-11-20", False), ["b"]),
        (("other", "objects", False), ["c"]),
    ]
    assert lines_of(jobs[2]) == [["lake", "d", "v7"], ["lake", "e", "null"]]


def test_what_no_job_can_copy_is_in_none() -> None:
    rows = [
        planned("large", lane="large"),
        planned("held", lane="held"),
        planned("told", lane="external"),
        planned("elsewhere", stored_key="objects/under-another-name"),
        planned("frozen", lane="archived"),
    ]
    assert rows_of(jobs_of([plan_batch(*rows)])) == [(("lake", "objects", False), ["frozen"])]


def test_large_plans_become_several_jobs_the_same_every_time() -> None:
    batches = [
        plan_batch(*(planned(f"k{number}") for number in range(start, start + 4))) for start in (0, 4, 8)
    ]
    jobs = jobs_of(batches, rows_a_job=5)
    assert [job.table.num_rows for job in jobs] == [5, 5, 2]
    assert [job.manifest() for job in jobs] == [job.manifest() for job in jobs_of(batches, rows_a_job=5)]
    assert sum(sum(job.table["size_bytes"].to_pylist()) for job in jobs) == 12 * 4096


def test_a_stored_prefix_is_told_only_where_the_stored_key_ends_with_the_key() -> None:
    stored = {"a/b": "objects/a/b", "/b": "other//b", "b": "b", "c": "objects/ac", "d": "/d"}
    jobs = jobs_of([plan_batch(*(planned(key, stored_key=to) for key, to in stored.items()))])
    assert rows_of(jobs) == [
        (("lake", "", False), ["b"]),
        (("lake", "objects", False), ["a/b"]),
        (("lake", "other", False), ["/b"]),
    ]


def test_plans_are_told_apart_by_what_is_copied_of_them() -> None:
    def digest(*rows: dict[str, Any]) -> str:
        return compute_plan_digest([plan_batch(*rows)])

    first = digest(planned("a"), planned("b"))
    assert first == digest(planned("a"), planned("held", lane="held"), planned("b"))
    assert first == compute_plan_digest([plan_batch(planned("a")), plan_batch(planned("b"))])
    others = [
        digest(planned("a")),
        digest(planned("a"), planned("b", etag="another")),
        digest(planned("a"), planned("b", stored_key="remade/b")),
        digest(planned("a"), planned("b", version_id="v1")),
    ]
    assert len({first, *others}) == 5
    assert compute_plan_digest([plan_batch(planned("held", lane="held"))]) == compute_plan_digest(
        list[pa.RecordBatch]()
    )
