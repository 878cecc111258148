"""Equality deletes delete exactly the rows that Iceberg's specification says, and read no more than they have to."""

import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.manifest import FileFormat

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings, StoreSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import read_iceberg
from lakeshare_server.tables.iceberg import equality_deletes
from lakeshare_server.versions.followed_iceberg import hide_locations
from tests.builders.campaign import campaign_size
from tests.builders.equality_tables import (
    BY_PLACE,
    ID,
    NAME,
    PLACE,
    Column,
    EqualityTable,
    Row,
    a_table,
    ids,
    statistics_of,
)
from tests.builders.random_equality import a_random_table, deleted_rows, random_versions

NAN = float("nan")


class ReadFiles(Stores):
    """Real stores with a note of the files that were opened."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(ServerSettings(_env_file=None, **settings))
        self.opened: list[str] = []

    def open(self, location: str) -> Any:
        self.opened.append(Path(location).name)
        return super().open(location)


def check(table: EqualityTable, stores: Stores | None = None) -> dict[str, list[int]]:
    """What is deleted, which is what the model says."""
    found = deleted_rows(table.commit(), stores or ReadFiles(state_dir=table.folder / "state"))
    assert found == table.deleted()
    return found


def test_a_key_deletes_older_rows_and_none_of_its_own_commit(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    old = table.add_rows(ids(1, 2, 3, 2), 1)
    table.add_rows(ids(2), 2)
    table.add_rows(ids(2), 3)
    table.delete_keys([ID], ids(2, 9), 2)
    assert check(table) == {old.path: [1, 3]}


def test_keys_apply_in_their_partition_and_those_of_an_unpartitioned_spec_everywhere(tmp_path: Path) -> None:
    table = a_table(tmp_path, specs=BY_PLACE)
    rows: list[Row] = [{1: 1, 2: "a", 3: "x"}, {1: 2, 2: "b", 3: "x"}, {1: 3, 2: None, 3: "x"}]
    x = table.add_rows(rows, 1, spec_id=1, partition=("x",))
    y = table.add_rows(rows, 1, spec_id=1, partition=("y",))
    bucket = table.add_rows(rows, 1, spec_id=3, partition=(2,))
    table.delete_keys([ID], ids(1), 2, spec_id=1, partition=("x",))
    assert check(table) == {x.path: [0]}
    table.delete_keys([ID], ids(2), 2, spec_id=2, partition=(None,))
    assert check(table) == {x.path: [0, 1], y.path: [1], bucket.path: [1]}
    table.delete_keys([NAME], [{2: None}], 2)
    assert check(table) == {x.path: [0, 1, 2], y.path: [1, 2], bucket.path: [1, 2]}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("boolean", [True, False, None]),
        ("int", [-(2**31), 0, None, 7]),
        ("double", [0.0, -0.0, NAN, None, float("inf"), 1.5]),
        ("float", [-0.0, 0.0, NAN, None, 0.1]),
        ("date", [-1, 0, None, 19782]),
        ("time", [0, None, 86_399_999_999]),
        ("timestamp", [-1, None, 1709164799999999]),
        ("timestamptz", [-1, None, 1709164799999999]),
        ("string", ["", "a", "a ", None, "ü\U0010ffff"]),
        ("binary", [b"", b"\x00", None, b"\xff\xfe"]),
        ("uuid", [bytes(16), b"\xff" * 16, None]),
        ("decimal(9, 2)", [Decimal("-0.01"), Decimal("0.00"), None, Decimal("128.00")]),
    ],
)  # fmt: skip
def test_every_type_deletes_what_is_equal(tmp_path: Path, kind: str, values: list[Any]) -> None:
    """One table for each value: null equals null, NaN equals NaN, and the two zeros differ."""
    key = Column(1, "k", kind)
    for place, value in enumerate(values):
        table = a_table(tmp_path / str(place), key, NAME)
        rows = [{1: one, 2: "n"} for one in values]
        file = table.add_rows(rows, 1, statistics=statistics_of([key, NAME], rows))
        table.delete_keys([key], [{1: value}], 2)
        assert check(table) == {file.path: [place]}


def test_several_columns_are_one_key_and_several_schemas_of_deletes_apply_together(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    rows: list[Row] = [{1: one, 2: name, 3: "x"} for one in (1, 2, None) for name in ("a", None)]
    file = table.add_rows(rows, 1)
    table.delete_keys([NAME, ID], [{1: 1, 2: None}, {1: None, 2: "a"}, {1: 2, 2: "z"}], 2)
    assert check(table) == {file.path: [1, 4]}
    table.delete_keys([ID, PLACE], [{1: 2, 3: "x"}], 3, ids=(1,))
    assert check(table) == {file.path: [1, 2, 3, 4]}


def test_older_types_in_files_are_compared_in_the_table_s(tmp_path: Path) -> None:
    for number, (kind, values) in enumerate(
        {"long": [1, None, -7], "double": [0.5, NAN, None], "decimal(9, 2)": [Decimal("1.25"), None]}.items()
    ):
        key = Column(1, "k", kind)
        table = a_table(tmp_path / str(number), key)
        rows = [{1: value} for value in values]
        table.add_rows(rows, 1, narrow=frozenset({1}))
        table.add_rows(rows, 1)
        table.delete_keys([key], rows[:1], 2)
        table.delete_keys([key], rows[1:2], 2, narrow=frozenset({1}))
        assert len(check(table)) == 2


def test_a_date_that_became_a_timestamp_is_its_midnight(tmp_path: Path) -> None:
    as_date, now = Column(1, "k", "date"), Column(1, "k", "timestamp")
    table = a_table(tmp_path, now)
    old = table.add_rows([{1: 1}, {1: 2}], 1, columns=[as_date])
    table.delete_keys([now], [{1: 86_400_000_000}], 2)
    assert deleted_rows(table.commit(), Stores(ServerSettings(_env_file=None, state_dir=tmp_path))) == {
        old.path: [0]
    }


def test_files_without_the_column_have_its_partition_value_its_default_or_null(tmp_path: Path) -> None:
    with_default = Column(4, "grade", "long", default=5)
    table = a_table(tmp_path, ID, PLACE, with_default, NAME, specs=BY_PLACE)
    lacking = table.add_rows(ids(1, 2), 1, columns=[ID], spec_id=1, partition=("x",))
    null = table.add_rows(ids(1, 2), 1, columns=[ID], spec_id=0)
    table.delete_keys([ID, PLACE], [{1: 1, 3: "x"}, {1: 2, 3: None}], 2)
    assert check(table) == {lacking.path: [0], null.path: [1]}
    table.delete_keys([with_default, ID], [{4: 5, 1: 2}, {4: None, 1: 1}], 2)
    assert check(table) == {lacking.path: [0, 1], null.path: [1]}
    table.delete_keys([NAME], [{2: None}], 2)
    assert check(table) == {lacking.path: [0, 1], null.path: [0, 1]}


def test_a_dropped_column_still_deletes(tmp_path: Path) -> None:
    dropped = Column(8, "gone", "string")
    table = a_table(tmp_path, ID, dropped=[dropped])
    file = table.add_rows([{1: 1, 8: "a"}, {1: 2, 8: "b"}], 1, columns=[ID, dropped])
    table.delete_keys([dropped], [{8: "b"}], 2)
    assert check(table) == {file.path: [1]}


def test_columns_are_found_by_id_under_other_names_and_in_structs(tmp_path: Path) -> None:
    inner = Column(11, "k")
    box, named = Column(10, "box", fields=(inner,)), Column(10, "crate", fields=(Column(11, "key"),))
    table = a_table(tmp_path, box, Column(12, "other", "string"))
    rows: list[Row] = [{10: {11: 1}, 12: "a"}, {10: {11: None}, 12: "b"}, {10: None, 12: "c"}]
    file = table.add_rows(rows, 1, columns=[Column(12, "crate.key", "string"), named])
    table.delete_keys([box], [{10: {11: 1}}], 2, ids=(11,))
    assert check(table) == {file.path: [0]}
    table.delete_keys([box], [{10: {11: None}}], 2, ids=(11,))
    assert check(table) == {file.path: [0, 1]}
    table.delete_keys([box], [{10: None}], 2, ids=(11,))
    assert check(table) == {file.path: [0, 1, 2]}


def test_files_without_ids_go_by_the_mapping_of_names(tmp_path: Path) -> None:
    mapping = '[{"field-id": 1, "names": ["id", "number"]}]'
    for properties in ({"schema.name-mapping.default": mapping}, {}):
        table = a_table(tmp_path / str(len(properties)), ID, properties=properties)
        file = table.add_rows(ids(1, 2), 1, columns=[Column(1, "number")], ids=False)
        table.delete_keys([ID], ids(2), 2)
        if properties:
            assert check(table) == {file.path: [1]}
        else:
            with pytest.raises(Unserveable, match=r"no field ids.*FILES_WITHOUT_IDS"):
                check(table)


def test_positions_and_keys_delete_together_and_a_whole_file(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    file, whole = table.add_rows(ids(1, 2, 3), 1), table.add_rows(ids(5, 5), 1)
    table.delete_positions(file, [2], 2)
    table.delete_keys([ID], ids(2, 5), 2)
    assert check(table) == {file.path: [1, 2], whole.path: [0, 1]}


def test_a_vector_takes_over_positions_but_not_keys(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID, version=3)
    file = table.add_rows(ids(1, 2, 3, 4), 1)
    table.delete_positions(file, [3], 2)
    table.delete_keys([ID], ids(2), 2)
    table.delete_by_vector(file, [0], 3)
    assert check(table) == {file.path: [0, 1]}


def test_the_snapshot_has_the_vectors_and_needs_readers_that_know_them(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    table.add_rows(ids(1, 2, 3), 1)
    table.delete_keys([ID], ids(2), 2)
    state = table.state()
    snapshot = read_iceberg(state.metadata_location, state.snapshot_id)
    [hindrance] = snapshot.head.hindrances
    assert (hindrance.feature, hindrance.code) == ("deletionVectors", "ROW_LEVEL_DELETES")
    assert snapshot.files.column("dv_cardinality").to_pylist() == [1]
    assert snapshot.files.column("rows").to_pylist() == [3]


def test_files_that_cannot_have_the_keys_are_not_read(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    for first in (0, 100, 200):
        rows: list[Row] = [{1: first + n, 2: f"n{first}", 3: None} for n in range(10)]
        table.add_rows(rows, 1, statistics=statistics_of(table.columns, rows))
    table.delete_keys([ID], ids(105, 150), 2)
    stores = ReadFiles(state_dir=tmp_path / "state")
    assert check(table, stores) == {table.data[1].path: [5]}
    assert stores.opened == [Path(file.path).name for file in (table.deletes[0], table.data[1])]


def test_the_next_version_reads_what_has_come_since(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    table.add_rows(ids(1, 2), 1)
    table.delete_keys([ID], ids(1), 2)
    stores = ReadFiles(state_dir=tmp_path / "state")
    first = table.commit()
    deleted_rows(first, stores)
    stores.opened.clear()
    assert deleted_rows(first, stores) == table.deleted()
    assert stores.opened == []
    # Data and deletes of one commit, as upserts write them.
    table.add_rows(ids(2), 3)
    table.delete_keys([ID], ids(2), 3)
    assert check(table, stores) == {table.data[0].path: [0, 1]}
    assert stores.opened == [Path(table.deletes[-1].path).name, Path(table.data[0].path).name]
    stores.opened.clear()
    restarted = ReadFiles(state_dir=tmp_path / "state")
    assert check(table, restarted)
    assert restarted.opened == []


def test_deletes_that_were_removed_delete_no_more(tmp_path: Path) -> None:
    table = a_table(tmp_path, specs=BY_PLACE)
    for place in ("x", "y"):
        table.add_rows([{1: 1, 3: place}, {1: 2, 3: place}], 1, spec_id=1, partition=(place,))
        table.delete_keys([ID], ids(1), 2, spec_id=1, partition=(place,))
    stores = ReadFiles(state_dir=tmp_path / "state")
    assert len(check(table, stores)) == 2
    table.deletes.pop()
    table.delete_keys([ID], ids(2), 3, spec_id=1, partition=("z",))
    stores.opened.clear()
    assert check(table, stores) == {table.data[0].path: [0]}
    assert stores.opened == []


def test_more_bytes_than_allowed_are_refused_with_the_setting(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    table.add_rows(ids(*range(1000)), 1)
    table.delete_keys([ID], ids(1), 2)
    limited = ReadFiles(state_dir=tmp_path / "state", equality_delete_bytes=500)
    with pytest.raises(
        Unserveable,
        match=r"LAKESHARE_EQUALITY_DELETE_BYTES is 500 bytes.*Raise LAKE.*rewrite_data.*EQUALITY_DEL",
    ):
        check(table, limited)


def test_recipients_are_told_of_a_limit_without_the_settings(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    table.add_rows(ids(1), 1)
    table.delete_keys([ID], ids(1), 2)
    with pytest.raises(Unserveable) as refused:
        check(table, ReadFiles(state_dir=tmp_path / "state", equality_delete_bytes=1))
    told = str(hide_locations(refused.value, ["/table"]))
    assert "LAKESHARE" not in told
    assert told.endswith("[EQUALITY_DELETES]")


def test_after_its_seconds_an_attempt_is_refused_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = a_table(tmp_path, ID)
    for _ in range(12):
        table.add_rows(ids(1, 2), 1)
    table.delete_keys([ID], ids(1), 2)
    location = table.commit()
    slow = ReadFiles(state_dir=tmp_path / "state", equality_delete_s=5)
    # One file after the other, and a clock that counts them.
    monkeypatch.setattr(equality_deletes, "SMALL_VALUES", 0)
    monkeypatch.setattr(equality_deletes, "time", SimpleNamespace(monotonic=lambda: len(slow.opened)))
    with pytest.raises(Unserveable, match=r"LAKESHARE_EQUALITY_DELETE_S is 5 seconds.*EQUALITY_DELETES"):
        deleted_rows(location, slow)
    monkeypatch.undo()
    stores = ReadFiles(state_dir=tmp_path / "state")
    assert deleted_rows(location, stores) == table.deleted()
    assert len([one for one in stores.opened if one.startswith("data")]) == 12 - 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"columns": [NAME], "ids": (1,)}, r"equality deletes .*equality-1.parquet of /table cannot be read"),
        ({"columns": [ID], "ids": (77,)}, r"no schema has a column with the id 77"),
        ({"columns": [Column(1, "id", "string")], "ids": (1,)}, "cannot be read"),
    ],
)
def test_deletes_that_are_not_as_the_specification_says_are_refused(
    tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    table = a_table(tmp_path, ID, NAME)
    table.add_rows([{1: 1, 2: "a"}], 1)
    key: Row = {1: "1" if wrong["columns"][0].type == "string" else 1, 2: "a"}
    table.delete_keys(wrong["columns"], [key], 2, ids=wrong["ids"])
    with pytest.raises(Unserveable, match=said):
        deleted_rows(table.commit(), ReadFiles(state_dir=tmp_path / "state"))


def test_keys_in_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    table.add_rows(ids(1), 1, statistics={"file_format": FileFormat.ORC})
    table.delete_keys([ID], ids(1), 2)
    with pytest.raises(Unserveable, match=r"data files in ORC.*\[FILE_FORMAT\]"):
        check(table)
    table.data[0] = replace(table.data[0], statistics={})
    table.deletes[0] = replace(table.deletes[0], statistics={"file_format": FileFormat.AVRO})
    with pytest.raises(Unserveable, match=r"equality deletes in AVRO.*\[EQUALITY_DELETES\]"):
        check(table)


def test_a_damaged_file_is_refused_never_passed_over(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID)
    data, delete = table.add_rows(ids(1, 2), 1), table.delete_keys([ID], ids(1), 2)
    location = table.commit()
    for file in (data, delete):
        content = Path(file.path).read_bytes()
        Path(file.path).write_bytes(content[:20])
        with pytest.raises(Unserveable, match="cannot be read"):
            deleted_rows(location, ReadFiles(state_dir=tmp_path / "state"))
        Path(file.path).write_bytes(content)


def test_a_partition_value_counts_and_not_what_its_file_has(tmp_path: Path) -> None:
    table = a_table(tmp_path, ID, PLACE, specs=BY_PLACE)
    file = table.add_rows([{1: 1, 3: "y"}], 1, spec_id=1, partition=("x",))
    table.delete_keys([PLACE], [{3: "y"}], 2)
    assert check(table) == {}
    table.delete_keys([PLACE], [{3: "x"}], 2)
    assert check(table) == {file.path: [0]}


@pytest.mark.campaign
def test_random_tables_lose_the_rows_that_the_model_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every version of a table with what is kept of those before it, and once more with nothing kept."""
    for seed in range(campaign_size(in_ci=12, in_campaign=2000)):
        dice = random.Random(seed)
        monkeypatch.setattr(equality_deletes, "KEYS_BYTES", dice.choice([1, 200, 1 << 20]))
        monkeypatch.setattr(equality_deletes, "BATCH_ROWS", dice.choice([3, 1 << 19]))
        monkeypatch.setattr(equality_deletes, "LOOKUP_BYTES", dice.choice([1, 300, 1 << 20]))
        monkeypatch.setattr(equality_deletes, "SMALL_VALUES", dice.choice([0, 10, 1 << 20]))
        table = a_random_table(dice, tmp_path / str(seed))
        for location in random_versions(dice, table):
            expected = table.deleted()
            kept = ReadFiles(state_dir=table.folder / "state")
            assert deleted_rows(location, kept) == expected, f"seed {seed}"
            unkept = Stores(StoreSettings(_env_file=None))
            assert deleted_rows(location, unkept) == expected, f"seed {seed}, nothing kept"
