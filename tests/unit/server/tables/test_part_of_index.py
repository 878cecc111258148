"""The part of an index that a rule allows is a whole index to whoever reads it, and tells nothing of the rest."""

import json
from pathlib import Path

import pytest

from lakeshare_server.access.rules import parse_rule
from lakeshare_server.tables import read_delta, write_index
from lakeshare_server.tables.index import FileIndex, open_index
from lakeshare_server.tables.restrictions import (
    find_renamed_column,
    find_undecided_in_index,
    restrict_index,
    without_counts,
)
from lakeshare_server.tables.snapshot import Hindrance, TableHead
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows

DAY = "day = DATE '2013-01-01'"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> FileIndex:
    """Four files of three days, two of the first."""
    folder = tmp_path_factory.mktemp("part")
    location = a_delta_table(folder / "table")
    append_delta(location, some_rows(days=1))
    stored = write_index(read_delta(str(location)), folder / "index")
    return open_index(folder / "index", stored.digest)


def paths(index: FileIndex) -> list[str]:
    return [path for batch in index.batches() for path in batch.column("path").to_pylist()]


def test_files_and_totals_are_those_of_the_part(index: FileIndex) -> None:
    part = restrict_index(index, parse_rule(DAY))
    own = [path for path in paths(index) if "day=2013-01-01" in path]
    assert paths(part) == own == paths(part)
    assert (part.header.files, part.header.rows) == (2, 8)
    assert part.header.size_bytes == sum(Path(path).stat().st_size for path in own)
    assert (index.header.files, index.header.rows) == (4, 16)
    nothing = restrict_index(index, parse_rule("day IS NULL"))
    assert (paths(nothing), nothing.header.files, nothing.header.size_bytes, nothing.header.rows) == (
        [],
        0,
        0,
        0,
    )


def test_a_part_is_worked_out_once_for_each_rule(index: FileIndex) -> None:
    rule = parse_rule(DAY)
    assert restrict_index(index, rule) is restrict_index(index, parse_rule(f" {DAY} "))
    assert restrict_index(index, rule) is not restrict_index(index, parse_rule("day IS NOT NULL"))
    # Equal to Python, but of other types: one is a rule, the other is not.
    assert restrict_index(index, parse_rule("TRUE AND day = 1")) is not restrict_index(
        index, parse_rule("TRUE AND day = true")
    )


def test_what_partitions_do_not_decide_is_named(index: FileIndex) -> None:
    assert find_undecided_in_index(index, parse_rule(DAY)) is None
    found = find_undecided_in_index(index, parse_rule(f"{DAY} OR flight = 1001"))
    assert found is not None
    assert found.column == "flight"


def head(**ids: int) -> TableHead:
    fields = [
        {"name": name, "type": "string", "nullable": True, "metadata": {"delta.columnMapping.id": number}}
        for name, number in ids.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    reasons = [Hindrance("deletionVectors", f"has deletion vectors on {one} files", "") for one in (3, 4)]
    return TableHead(
        table_id="t", schema_string=schema, partition_columns=("region",), hindrances=tuple(reasons)
    )


def test_a_name_that_was_another_column_before_is_not_decided() -> None:
    rule = parse_rule("REGION = 'eu' AND day IS NULL")
    assert find_renamed_column(rule, head(region=1, day=2), head(region=1, day=2, new=3)) is None
    found = find_renamed_column(rule, head(region=2, day=1), head(region=1, day=2))
    assert found is not None
    assert found.column == "REGION"
    # Whether a column that was not there yet decides is another question.
    assert find_renamed_column(rule, head(day=2), head(region=1, day=2)) is None


def test_numbers_of_files_are_left_out_of_what_hinders() -> None:
    [one] = without_counts(head(region=1)).hindrances
    assert not any(character.isdigit() for character in one.reason)
