"""A job is judged by its report, row by row, however the report spells its keys; its state proves nothing."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from lakeshare_pipelines.backup.copy.aws_batch import (
    BatchJob,
    count_failures,
    explain_broken_job,
    join_report,
)
from lakeshare_pipelines.backup.copy.engine import RESULTS
from tests.builders.backup_plan import jobs_of, plan_batch, planned
from tests.builders.keys import AWKWARD_KEYS

# Each is what the other one looks like when it is encoded.
CONFUSED = ["a b", "a%20b", "a%2520b", "a+b"]


def rows_of(*rows: dict[str, Any]) -> pa.Table:
    (job,) = jobs_of([plan_batch(*rows)])
    return job.table


def told(keys: Sequence[str], status: str = "succeeded", **said: Any) -> pa.Table:
    """A report's rows, of schema DONE."""
    rows = [{"bucket": "lake", "key": key, "stored_key": "", "status": status, **said} for key in keys]
    return pa.Table.from_pylist(rows, RESULTS)


@pytest.mark.parametrize("spelt", ["asked_key", "key"])
@pytest.mark.parametrize("keys", [CONFUSED, AWKWARD_KEYS], ids=["confused", "awkward"])
def test_rows_are_found_in_a_report_that_has_encoded_or_decoded_keys(spelt: str, keys: list[str]) -> None:
    rows = rows_of(*(planned(key) for key in keys))
    report = told(list(reversed(rows[spelt].to_pylist())))
    numbers = [str(number) for number in reversed(range(len(keys)))]
    report = report.set_column(
        RESULTS.get_field_index("message"), RESULTS.field("message"), pa.array(numbers)
    )
    done = join_report(rows, report)
    assert done.schema == RESULTS
    assert sorted(done["key"].to_pylist()) == sorted(keys)
    assert done["message"].to_pylist() == [str(number) for number in range(len(keys))]
    assert done["stored_key"].to_pylist() == [f"objects/{key}" for key in done["key"].to_pylist()]


def test_versions_of_one_key_are_told_apart() -> None:
    rows = rows_of(
        planned("a", version_id="v1"), planned("a", version_id="v2"), planned("b", is_latest=False)
    )
    report = pa.concat_tables(
        [
            told(["a"], version_id="v2"),
            told(["a"], "failed", version_id="v1", error_code="NoSuchVersion", http_status=404),
            told(["b"], version_id="null"),
        ]
    )
    done = join_report(rows, report)
    assert done["status"].to_pylist() == ["failed", "succeeded", "succeeded"]
    assert done["version_id"].to_pylist() == ["v1", "v2", None]


def test_rows_that_no_report_tells_of_have_failed() -> None:
    done = join_report(rows_of(planned("a"), planned("b")), told(["b"]))
    assert done["status"].to_pylist() == ["failed", "succeeded"]
    assert done["error_code"].to_pylist() == ["NotReported", None]
    assert join_report(rows_of(planned("a")), RESULTS.empty_table())["status"].to_pylist() == ["failed"]


@pytest.mark.parametrize(
    ("status", "failed", "succeeded", "told"),
    [
        ("Complete", {}, 100, None),
        ("Complete", {"NoSuchKey": 60}, 40, None),
        ("Complete", {"NoSuchKey": 2}, 0, None),
        ("Complete", {"NoSuchKey": 5000, "PreconditionFailed": 10}, 0, None),
        ("Complete", {"AccessDenied": 1}, 0, None),
        ("Complete", {"AccessDenied": 1000}, 0, "is Complete but copied nothing: 1000 AccessDenied"),
        ("Failed", {"AccessDenied": 600}, 401, "is Failed: too many; 600 AccessDenied"),
        ("Cancelled", {}, 10, "is Cancelled: too many"),
    ],
)
def test_a_job_is_accepted_for_what_it_copied(
    status: str, failed: dict[str, int], succeeded: int, told: str | None
) -> None:
    reasons = () if status == "Complete" else ("too many",)
    job = BatchJob(
        number=0, bucket="lake", stored_prefix="objects", has_versions=False, objects=1, size_bytes=1, token="t",
        manifest_key="m", manifest_etag="e", rows_key="r", report_prefix="p", job_id="job-1", status=status,
        reasons=reasons,
    )  # fmt: skip
    found = explain_broken_job(job, failed, succeeded)
    assert (found is None) if told is None else (told in str(found))


def test_failures_are_counted_by_their_codes() -> None:
    report = pa.concat_tables([told("ab", "failed", error_code="NoSuchKey"), told("c"), told("d", "failed")])
    assert count_failures(report) == {"NoSuchKey": 2, "unknown": 1}
