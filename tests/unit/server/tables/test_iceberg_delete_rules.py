"""Which rows Iceberg's row-level deletes delete, by the rules of its specification; judged by a decoder of our own."""

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.iceberg.deletes import Target, Targets, deletion_vectors
from lakeshare_server.tables.iceberg.manifests import DeleteFile
from tests.builders.deletion_vector import positions
from tests.builders.row_deletes import ROWS, a_delete_file, a_target, a_vector, position_deletes

DAY_1, DAY_2 = ((1000, 1),), ((1000, 2),)


def deleted(
    targets: Sequence[Target], *deletes: DeleteFile, unpartitioned: Iterable[int] = ()
) -> Mapping[str, list[int]]:
    """The deleted rows by the paths of their files."""
    vectors = deletion_vectors(
        Stores(ServerSettings()), Targets(targets, frozenset(unpartitioned)), deletes, "/table"
    )
    found = {targets[number].path: positions(vector.content).tolist() for number, vector in vectors.items()}
    assert all(vector.cardinality == len(found[targets[number].path]) for number, vector in vectors.items())
    return found


def test_a_position_delete_applies_to_its_own_commit_and_older_ones(tmp_path: Path) -> None:
    files = [
        a_target("old", sequence_number=1),
        a_target("same", sequence_number=2),
        a_target("new", sequence_number=3),
    ]
    delete = position_deletes(tmp_path, [("old", 1), ("same", 2), ("new", 3)])
    assert deleted(files, delete) == {"old": [1], "same": [2]}


def test_a_position_delete_applies_in_its_own_partition_only(tmp_path: Path) -> None:
    files = [
        a_target("a", partition=DAY_1), a_target("b", partition=DAY_2), a_target("c", spec_id=1, partition=DAY_1),
    ]  # fmt: skip
    delete = position_deletes(tmp_path, [("a", 1), ("b", 2), ("c", 3)], partition=DAY_1)
    assert deleted(files, delete) == {"a": [1]}


def test_partitions_of_nan_are_the_same(tmp_path: Path) -> None:
    nans = [((1000, float("nan")),) for _ in range(2)]
    delete = position_deletes(tmp_path, [("a", 1)], partition=nans[0])
    assert deleted([a_target("a", partition=nans[1])], delete) == {"a": [1]}


def test_partitions_of_the_two_zeros_differ(tmp_path: Path) -> None:
    minus, plus = ((1000, -0.0),), ((1000, 0.0),)
    delete = position_deletes(tmp_path, [("a", 1), ("b", 1)], partition=minus)
    assert deleted([a_target("a", partition=minus), a_target("b", partition=plus)], delete) == {"a": [1]}


@pytest.mark.parametrize("told", [{"referenced_data_file": "a"}, {"lowest_path": "a", "highest_path": "a"}])
def test_deletes_for_one_data_file_speak_of_no_other(tmp_path: Path, told: dict[str, str]) -> None:
    delete = position_deletes(tmp_path, [("a", 1), ("b", 2)], **told)
    assert deleted([a_target("a"), a_target("b")], delete) == {"a": [1]}


def test_deletes_of_files_that_are_gone_are_not_even_opened(tmp_path: Path) -> None:
    gone = [
        a_delete_file("/nowhere", referenced_data_file="gone"),
        a_delete_file("/nowhere", lowest_path="x", highest_path="z"),
        a_delete_file("/nowhere", partition=DAY_1),
        a_delete_file("/nowhere", sequence_number=0),
        a_delete_file("/nowhere", format="AVRO", partition=DAY_1),
        a_vector(tmp_path, [1], of="gone"),
    ]  # fmt: skip
    assert deleted([a_target("a")], *gone) == {}


def test_row_groups_that_speak_of_no_live_file_are_not_read(tmp_path: Path) -> None:
    delete = position_deletes(tmp_path, [("a", 1), ("dead", 2), ("z", 3)], group_rows=1)
    path = Path(delete.path)
    group = pq.read_metadata(path).row_group(1)
    content = bytearray(path.read_bytes())
    for number in range(group.num_columns):
        chunk = group.column(number)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    assert deleted([a_target("a"), a_target("z")], delete) == {"a": [1], "z": [3]}
    with pytest.raises(Unserveable, match="cannot be read"):
        deleted([a_target("dead")], delete)


def test_what_is_behind_the_end_deletes_nothing(tmp_path: Path) -> None:
    delete = position_deletes(tmp_path, [("a", ROWS - 1), ("a", ROWS), ("a", 1 << 40), ("b", ROWS)])
    assert deleted([a_target("a"), a_target("b")], delete) == {"a": [ROWS - 1]}
    vector = a_vector(tmp_path, [ROWS - 1, ROWS])
    assert deleted([a_target("a")], vector) == {"a": [ROWS - 1]}


@pytest.mark.parametrize("wrong", [("a", -1), ("a", None), (None, 1)])
def test_deletes_that_say_nothing_are_refused(tmp_path: Path, wrong: tuple[str | None, int | None]) -> None:
    delete = position_deletes(tmp_path, [("a", 1), wrong])
    with pytest.raises(Unserveable, match=r"position deletes .*deletes.parquet of /table cannot be read"):
        deleted([a_target("a")], delete)


def test_columns_are_found_by_their_ids(tmp_path: Path) -> None:
    ids = {
        name: {b"PARQUET:field_id": str(number).encode()}
        for name, number in (("p", 2147483546), ("q", 2147483545))
    }
    schema = pa.schema(
        [pa.field("q", pa.int64(), metadata=ids["q"]), pa.field("p", pa.string(), metadata=ids["p"])]
    )
    pq.write_table(pa.table({"q": [4], "p": ["a"]}, schema), tmp_path / "own names.parquet")
    assert deleted([a_target("a")], a_delete_file(tmp_path / "own names.parquet")) == {"a": [4]}


@pytest.mark.parametrize("kept", [0, 20, -1])
def test_a_damaged_file_is_refused_never_left_out(tmp_path: Path, kept: int) -> None:
    delete = position_deletes(tmp_path, [("a", 1)])
    Path(delete.path).write_bytes(Path(delete.path).read_bytes()[:kept])
    with pytest.raises(Unserveable, match="cannot be read"):
        deleted([a_target("a")], delete)


@pytest.mark.parametrize("kind", ["AVRO", "ORC"])
def test_deletes_in_other_formats_are_refused_by_name(kind: str) -> None:
    with pytest.raises(
        Unserveable, match=rf"in {kind}.*write.delete.format.default.*rewrite_position_delete_files"
    ):
        deleted([a_target("a")], a_delete_file("/nowhere", format=kind))


def test_equality_deletes_of_older_files_are_refused() -> None:
    equality = a_delete_file("/nowhere", content="equality", equality_ids=(1,))
    with pytest.raises(
        Unserveable, match=r"1 files of equality deletes.*rewrite_data_files.*EQUALITY_DELETES"
    ):
        deleted([a_target("a")], equality)
    assert deleted([a_target("a", sequence_number=2)], equality) == {}


def test_equality_deletes_of_a_partition_stay_in_it_and_others_are_for_all() -> None:
    equality = a_delete_file("/nowhere", content="equality", partition=DAY_2)
    assert deleted([a_target("a", partition=DAY_1)], equality) == {}
    everywhere = a_delete_file("/nowhere", content="equality", spec_id=3)
    assert deleted([a_target("a", partition=DAY_1)], everywhere) == {}
    with pytest.raises(Unserveable, match="EQUALITY_DELETES"):
        deleted([a_target("a", partition=DAY_1)], everywhere, unpartitioned=[3])


def test_a_vector_has_taken_over_what_was_deleted_before(tmp_path: Path) -> None:
    before = position_deletes(tmp_path, [("a", 1), ("b", 2)])
    assert deleted([a_target("a"), a_target("b")], before, a_vector(tmp_path, [1, 5])) == {
        "a": [1, 5],
        "b": [2],
    }


def test_a_vector_that_deletes_nothing_is_none(tmp_path: Path) -> None:
    assert deleted([a_target("a")], a_vector(tmp_path, [])) == {}


@pytest.mark.parametrize("place", range(4, 40, 4))
def test_a_damaged_vector_is_refused(tmp_path: Path, place: int) -> None:
    vector = a_vector(tmp_path, range(0, 90, 7))
    content = bytearray(Path(vector.path).read_bytes())
    content[place] ^= 0x40
    Path(vector.path).write_bytes(content)
    with pytest.raises(Unserveable, match=r"deletion vectors .*puffin of /table cannot be read"):
        deleted([a_target("a")], vector)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 3},
        {"content_offset": 0},
        {"content_size_in_bytes": 7},
        {"content_size_in_bytes": 9999},
        {"content_offset": 9999},
    ],
)
def test_a_vector_that_is_not_where_its_manifest_says_is_refused(
    tmp_path: Path, wrong: dict[str, int]
) -> None:
    with pytest.raises(Unserveable, match="cannot be read"):
        deleted([a_target("a")], a_vector(tmp_path, [1, 2], **wrong))


def test_what_iceberg_does_not_allow_is_refused(tmp_path: Path) -> None:
    vector = a_vector(tmp_path, [1])
    with pytest.raises(Unserveable, match="two deletion vectors"):
        deleted([a_target("a")], vector, vector)
    with pytest.raises(Unserveable, match="older than itself"):
        deleted([a_target("a", sequence_number=3)], vector)
    with pytest.raises(Unserveable, match="lacks its data file, offset or size"):
        deleted([a_target("a")], a_vector(tmp_path, [1], content_offset=None))


def test_vectors_in_one_file_are_each_their_own(tmp_path: Path) -> None:
    """Neighbours are read in one go, those far away by themselves."""
    content, told = b"PFA1", []
    for name, gap in (("a", 0), ("b", 10), ("c", 1 << 20)):
        one = Path(a_vector(tmp_path, [len(told), 50]).path).read_bytes()[4:-4]
        content += bytes(gap)
        told.append((name, len(content), len(one)))
        content += one
    (tmp_path / "all.puffin").write_bytes(content)
    deletes = [
        a_delete_file(
            tmp_path / "all.puffin", format="PUFFIN", rows=2, referenced_data_file=name, content_offset=at,
            content_size_in_bytes=size,
        )
        for name, at, size in reversed(told)
    ]  # fmt: skip
    targets = [a_target(name) for name in "abc"]
    assert deleted(targets, *deletes) == {"a": [0, 50], "b": [1, 50], "c": [2, 50]}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_random_deletes_delete_what_the_rules_say(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    dice, folder = random.Random(seed), tmp_path_factory.mktemp("random")
    partitions = [(0, ()), (1, DAY_1), (1, DAY_2), (2, DAY_1)]
    targets = []
    for number in range(dice.randint(1, 8)):
        spec, partition = dice.choice(partitions)
        targets.append(
            a_target(
                f"f{number}", spec_id=spec, partition=partition, sequence_number=dice.randint(1, 5),
                rows=dice.choice([1, 10, 70_000]),
            )
        )  # fmt: skip
    paths = [f"f{number}" for number in range(len(targets) + 2)]
    expected: dict[str, set[int]] = {}
    deletes = []
    for _ in range(dice.randint(1, 6)):
        spec, partition = dice.choice(partitions)
        said = [(dice.choice(paths), dice.randrange(80_000)) for _ in range(dice.randint(1, 300))]
        said += [(dice.choice(paths), dice.randrange(12)) for _ in range(20)]
        if dice.random() < 0.7:
            said.sort()
        told = {"spec_id": spec, "partition": partition, "sequence_number": dice.randint(1, 5)}
        if dice.random() < 0.5:
            told |= {"lowest_path": min(said)[0], "highest_path": max(said)[0]}
        deletes.append(position_deletes(folder, said, dice.choice([1000, 50, 7]), **told))
        for target in targets:
            if target.sequence_number > told["sequence_number"]:
                continue
            is_near = (target.spec_id, target.partition) == (spec, partition)
            if is_near or told.get("lowest_path") == told.get("highest_path") == target.path:
                rows = {at for path, at in said if path == target.path and at < target.rows}
                expected.setdefault(target.path, set()).update(rows)
    found = deleted(targets, *deletes)
    assert found == {path: sorted(rows) for path, rows in expected.items() if rows}
