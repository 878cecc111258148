"""Reason codes choose the rewrite, and nothing is rewritten that would not help a promised client."""

from collections.abc import Mapping, Sequence

import pytest

from lakeshare_pipelines.wap.serveable import (
    ALL_FILES,
    COLUMN_CODES,
    COPY_ON_WRITE,
    FILES_WITH_DELETES,
    FORMAT_CODES,
    SOLVABLE,
    find_solvable_codes,
    plan_rewrite,
)
from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.serveability import ReasonCode, judge_serveability, refuse_all_clients
from lakeshare_server.tables.snapshot import Hindrance, TableHead

FEATURES: Mapping[str, str | None] = {
    "ROW_LEVEL_DELETES": "deletionVectors",
    "RENAMED_COLUMNS": "columnMapping",
    "WIDENED_TYPES": "typeWidening",
    "TIMESTAMPS_WITHOUT_ZONE": "timestampNtz",
}
# What needs the hand of who owns the table; a code that is new must be put on one side.
LASTING = {
    *("TIMESTAMPS_WITHOUT_ZONE", "VARIANTS", "UNSUPPORTED_TYPE", "NAMES_DIFFER_BY_CASE", "BINARY_PARTITION"),
    *("ENCRYPTED_FILES", "NAMES_SPELT_OTHERWISE", "DUPLICATE_FILES", "SHREDDED_VARIANTS"),
    *("UNPUBLISHED_COMMITS", "VOID_COLUMN", "UNKNOWN_TYPE"),
}


def a_head(*codes: str) -> TableHead:
    hindrances = tuple(Hindrance(FEATURES[code], f"has {code}", "Mend it.", code) for code in codes)
    return TableHead(table_id="t", schema_string="{}", partition_columns=(), hindrances=hindrances)


def test_every_code_is_solved_by_a_rewrite_or_by_nobody() -> None:
    assert set(ReasonCode) == SOLVABLE | LASTING
    assert not SOLVABLE & LASTING


@pytest.mark.parametrize(
    ("promised", "codes", "found"),
    [
        (["python-parquet"], ["ROW_LEVEL_DELETES"], {"ROW_LEVEL_DELETES"}),
        (
            ["python-parquet"],
            ["RENAMED_COLUMNS", "ROW_LEVEL_DELETES"],
            {"RENAMED_COLUMNS", "ROW_LEVEL_DELETES"},
        ),
        (["python-delta"], ["ROW_LEVEL_DELETES"], set()),
        (["python-delta"], ["RENAMED_COLUMNS", "WIDENED_TYPES"], {"WIDENED_TYPES"}),
        (["spark", "iceberg-rest"], ["RENAMED_COLUMNS", "WIDENED_TYPES"], set()),
        (["python-parquet"], ["RENAMED_COLUMNS", "TIMESTAMPS_WITHOUT_ZONE"], set()),
        (["python-parquet", "python-delta"], ["WIDENED_TYPES", "TIMESTAMPS_WITHOUT_ZONE"], {"WIDENED_TYPES"}),
        (["python-parquet"], [], set()),
        ([], ["ROW_LEVEL_DELETES"], set()),
    ],
)
def test_only_what_helps_a_promised_client_is_in_the_way(
    promised: Sequence[str], codes: Sequence[str], found: set[str]
) -> None:
    assert find_solvable_codes(promised, judge_serveability("iceberg", a_head(*codes))) == found


@pytest.mark.parametrize(
    ("code", "found"), [("EQUALITY_DELETES", {"EQUALITY_DELETES"}), ("ENCRYPTED_FILES", set()), (None, set())]
)
def test_what_nobody_can_read_is_in_the_way_of_each_client(code: str | None, found: set[str]) -> None:
    verdicts = refuse_all_clients(Unserveable("It cannot be read.", "Mend it.", code))
    assert find_solvable_codes(["iceberg-rest"], verdicts) == found
    assert find_solvable_codes([], verdicts) == set()


@pytest.mark.parametrize("code", ["ROW_LEVEL_DELETES", "EQUALITY_DELETES", "DELETE_FORMAT", "LARGE_DELETES"])
def test_of_deletes_only_files_that_have_some_are_rewritten(code: str) -> None:
    rewrite = plan_rewrite([code])
    assert rewrite.options == {**FILES_WITH_DELETES, "remove-dangling-deletes": "true"}
    assert COPY_ON_WRITE.items() <= rewrite.properties.items()
    deletes_are_set = "write.delete.format.default" in rewrite.properties
    assert deletes_are_set == (code == "DELETE_FORMAT")


@pytest.mark.parametrize("code", sorted(COLUMN_CODES | FORMAT_CODES))
def test_of_columns_and_formats_all_files_are_rewritten(code: str) -> None:
    rewrite = plan_rewrite([code])
    assert rewrite.options == ALL_FILES
    assert rewrite.properties == ({"write.format.default": "parquet"} if code == "FILE_FORMAT" else {})


def test_several_codes_are_one_rewrite() -> None:
    rewrite = plan_rewrite(["RENAMED_COLUMNS", "ROW_LEVEL_DELETES"])
    assert rewrite.options == {**ALL_FILES, "remove-dangling-deletes": "true"}
    assert rewrite.properties == COPY_ON_WRITE
