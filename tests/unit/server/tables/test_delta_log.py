"""Which files of a Delta log make a version: any whole way through it will do; none is an error, never a guess."""

from collections.abc import Callable
from pathlib import Path

import pytest

from lakeshare_server.errors import TableFilesMissing, Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import read_delta
from lakeshare_server.tables.delta.log import LogListing, list_for_latest, list_log, replay
from tests.builders.log_files import PROTOCOL, WrittenLog, add, metadata, remove

STORES = Stores(ServerSettings(_env_file=None))
HEAD = (PROTOCOL, metadata())


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    return WrittenLog(tmp_path / "table")


def five_commits(log: WrittenLog) -> None:
    """Versions 0 to 4; each adds a file, the last one removes the first file."""
    log.first(add("0"))
    for version in range(1, 4):
        log.commit(version, add(str(version)))
    log.commit(4, add("4"), remove("0"))


def listing(log: WrittenLog) -> LogListing:
    return list_log(STORES, str(log.root))


def live(log: WrittenLog, version: int | None = None) -> list[str]:
    """The names of the files at a version, by the whole listing and by what is listed for the newest one."""
    found = sorted(read_delta(str(log.root), version).files.column("name").to_pylist())
    if version is None:
        whole = listing(log)
        adds = replay(STORES, whole, whole.latest).adds
        assert sorted(adds.column("path").to_pylist()) == found
    return found


def used(log: WrittenLog, version: int) -> list[str]:
    """The files of the first way through the log, newest first."""
    segment = next(listing(log).segments(version))
    parts = () if segment.checkpoint is None else segment.checkpoint.parts
    return [Path(file.location).name for file in (*(one[2] for one in segment.deltas), *parts)]


def test_every_version_is_made_of_the_commits_up_to_it(log: WrittenLog) -> None:
    five_commits(log)
    assert [live(log, version) for version in range(5)] == [
        ["0"],
        ["0", "1"],
        ["0", "1", "2"],
        ["0", "1", "2", "3"],
        ["1", "2", "3", "4"],
    ]
    assert live(log) == ["1", "2", "3", "4"]


def test_the_newest_checkpoint_not_after_the_version_is_read(log: WrittenLog) -> None:
    five_commits(log)
    two = log.checkpoint(2, *HEAD, add("0"), add("1"), add("2"))
    four = log.checkpoint(4, *HEAD, *map(add, "1234"))
    assert used(log, 4) == [four.name]
    assert used(log, 3) == [f"{3:020}.json", two.name]
    assert used(log, 1) == [f"{1:020}.json", f"{0:020}.json"]
    for version in range(5):
        assert len(live(log, version)) == min(version + 1, 4)


def test_a_version_after_clean_up_is_made_of_its_checkpoint(log: WrittenLog) -> None:
    five_commits(log)
    log.checkpoint(2, *HEAD, add("0"), add("1"), add("2"))
    for version in range(3):
        (log.folder / f"{version:020}.json").unlink()
    assert [live(log, version) for version in (2, 3)] == [["0", "1", "2"], ["0", "1", "2", "3"]]
    with pytest.raises(
        Unserveable, match=r"at version 1: .*table files missing|the log of version 1 is not whole"
    ):
        read_delta(str(log.root), 1)
    assert listing(log).oldest_readable() == 2


def test_parts_of_a_checkpoint_count_only_together(log: WrittenLog) -> None:
    five_commits(log)
    log.part(4, 1, 3, *HEAD, add("1"), add("2"))
    log.part(4, 3, 3, add("4"))
    assert listing(log).checkpoints == {}
    assert live(log) == ["1", "2", "3", "4"]
    log.part(4, 2, 3, add("3"))
    [checkpoint] = listing(log).checkpoints[4]
    assert len(checkpoint.parts) == 3
    for version in range(5):
        (log.folder / f"{version:020}.json").unlink()
    assert live(log) == ["1", "2", "3", "4"]


def test_parts_of_different_checkpoints_do_not_mix(log: WrittenLog) -> None:
    five_commits(log)
    log.part(4, 1, 2, *HEAD, add("1"), add("2"))
    log.part(4, 2, 3, add("wrong"))
    log.part(4, 3, 3, add("wrong"))
    assert listing(log).checkpoints == {}
    assert live(log) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("kind", ["json", "parquet"])
@pytest.mark.parametrize("in_sidecars", [True, False])
def test_a_checkpoint_of_version_2_is_read_with_its_sidecars(
    log: WrittenLog, kind: str, in_sidecars: bool
) -> None:
    five_commits(log)
    files = [[add("0"), add("1")], [add("2")]]
    if in_sidecars:
        log.v2(2, kind, *HEAD, sidecars=files)
    else:
        log.v2(2, kind, *HEAD, *files[0], *files[1])
    for version in range(3):
        (log.folder / f"{version:020}.json").unlink()
    assert live(log, 2) == ["0", "1", "2"]
    assert live(log) == ["1", "2", "3", "4"]


def test_a_sidecar_that_is_gone_is_not_passed_over(log: WrittenLog) -> None:
    five_commits(log)
    log.v2(4, "json", *HEAD, sidecars=[[add("1"), add("2")], [add("3"), add("4")]])
    next((log.folder / "_sidecars").iterdir()).unlink()
    assert live(log) == ["1", "2", "3", "4"]
    (log.folder / f"{0:020}.json").unlink()
    with pytest.raises(Unserveable, match=r"\.parquet of its log has vanished"):
        read_delta(str(log.root))


def test_of_a_sidecar_only_its_files_count(log: WrittenLog) -> None:
    """One that names itself would never end, one with a head of its own would change the table's."""
    five_commits(log)
    itself = {"sidecar": {"path": "itself.parquet", "sizeInBytes": 1, "modificationTime": 1}}
    other = metadata({"other": "string"}, name="other")
    log.v2(4, "parquet", *HEAD, log.sidecar("itself.parquet", itself, other, *map(add, "1234")))
    assert live(log) == ["1", "2", "3", "4"]
    assert read_delta(str(log.root)).head.name is None


@pytest.mark.parametrize("sidecar", [{}, {"path": None}, {"path": 5}, 5])
def test_a_sidecar_without_a_path_is_not_passed_over(log: WrittenLog, sidecar: object) -> None:
    five_commits(log)
    log.v2(4, "json", *HEAD, *map(add, "1234"), {"sidecar": sidecar})
    assert live(log) == ["1", "2", "3", "4"]
    (log.folder / f"{0:020}.json").unlink()
    with pytest.raises(Unserveable, match="a sidecar in its log has the path"):
        read_delta(str(log.root))


def test_a_compaction_is_read_instead_of_its_commits(log: WrittenLog) -> None:
    five_commits(log)
    wide = log.compacted(1, 3, *map(add, "123"))
    log.compacted(2, 3, *map(add, "23"))
    assert used(log, 4) == [f"{4:020}.json", wide.name, f"{0:020}.json"]
    assert used(log, 2) == [f"{version:020}.json" for version in (2, 1, 0)]
    assert live(log) == ["1", "2", "3", "4"]
    for version in range(1, 4):
        (log.folder / f"{version:020}.json").unlink()
    assert live(log) == ["1", "2", "3", "4"]
    with pytest.raises(Unserveable, match="the log of version 2 is not whole"):
        read_delta(str(log.root), 2)


def test_a_compaction_reaches_not_below_the_checkpoint(log: WrittenLog) -> None:
    five_commits(log)
    checkpoint = log.checkpoint(2, *HEAD, *map(add, "012"))
    log.compacted(1, 3, *map(add, "123"))
    after = log.compacted(3, 4, add("3"), add("4"), remove("0"))
    assert used(log, 4) == [after.name, checkpoint.name]
    assert live(log) == ["1", "2", "3", "4"]


def test_a_compaction_that_is_only_commits_put_together_is_passed_over(log: WrittenLog) -> None:
    """Which of two actions of a file is the newer one, such a file does not tell."""
    log.first(add("0"))
    log.commit(1, add("1"))
    log.commit(2, remove("1"), add("2"))
    log.compacted(0, 2, PROTOCOL, metadata(), remove("1"), add("2"), add("1"), add("0"))
    assert live(log) == ["0", "2"]


def test_a_broken_compaction_leaves_the_commits_it_stands_for(log: WrittenLog) -> None:
    five_commits(log)
    log.compacted(1, 3, *map(add, "123")).write_text('{"add":')
    assert live(log) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("gap", range(4))
def test_a_gap_in_the_commits_is_no_version(log: WrittenLog, gap: int) -> None:
    five_commits(log)
    (log.folder / f"{gap:020}.json").unlink()
    with pytest.raises(TableFilesMissing, match="table files missing: the log of version 4 is not whole"):
        replay(STORES, listing(log), 4)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def not_parquet(path: Path) -> None:
    path.write_bytes(b"PAR1 not at all")


@pytest.mark.parametrize("spoil", [cut_off, empty, not_parquet, Path.unlink])
@pytest.mark.parametrize("announced", [True, False])
def test_a_spoilt_checkpoint_leaves_the_commits(
    log: WrittenLog, spoil: Callable[[Path], None], announced: bool
) -> None:
    five_commits(log)
    spoilt = log.checkpoint(3, *HEAD, *map(add, "0123"))
    if announced:
        log.announce(version=3, size=6)
    spoil(spoilt)
    assert live(log) == ["1", "2", "3", "4"]
    (log.folder / f"{1:020}.json").unlink()
    with pytest.raises(Unserveable, match=r"cannot be read at version 4: .*not whole"):
        read_delta(str(log.root))


def test_a_checkpoint_without_its_head_leaves_the_commits(log: WrittenLog) -> None:
    five_commits(log)
    log.checkpoint(3, PROTOCOL, *map(add, "0123"))
    assert live(log) == ["1", "2", "3", "4"]


def test_a_second_checkpoint_of_a_version_stands_in_for_a_broken_one(log: WrittenLog) -> None:
    five_commits(log)
    log.v2(4, "json", *HEAD, sidecars=[list(map(add, "1234"))])
    not_parquet(log.checkpoint(4, *HEAD))
    for version in range(5):
        (log.folder / f"{version:020}.json").unlink()
    assert live(log) == ["1", "2", "3", "4"]


def test_a_checkpoint_with_fewer_files_than_announced_is_not_whole(log: WrittenLog) -> None:
    """Upstream's tests delete files of a checkpoint and want `table files missing`."""
    five_commits(log)
    log.checkpoint(3, *HEAD, *map(add, "012"))
    log.announce(version=3, size=6, numOfAddFiles=4)
    assert live(log) == ["1", "2", "3", "4"]
    (log.folder / f"{1:020}.json").unlink()
    with pytest.raises(Unserveable, match="the checkpoint of version 3 names 3 files, 4 announced"):
        read_delta(str(log.root))


ANNOUNCEMENTS = {
    "of a version that has none": {"version": 4, "size": 1},
    "of a version to come": {"version": 9, "size": 1},
    "of no version": {"size": 1},
    "of no number": {"version": "3"},
    "of a huge number": {"version": 10**30},
    "below zero": {"version": -3},
    "without a count": {"version": 3, "numOfAddFiles": None},
    "older than the newest": {"version": 1, "numOfAddFiles": 99},
}


@pytest.mark.parametrize("case", ANNOUNCEMENTS)
def test_an_announcement_is_only_a_hint(log: WrittenLog, case: str) -> None:
    five_commits(log)
    log.checkpoint(3, *HEAD, *map(add, "0123"))
    log.announce(**ANNOUNCEMENTS[case])
    if case == "without a count":
        (log.folder / f"{1:020}.json").unlink()
    assert live(log) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", '"3"'])
def test_an_announcement_that_cannot_be_read_says_nothing(log: WrittenLog, text: str) -> None:
    five_commits(log)
    log.checkpoint(3, *HEAD, *map(add, "0123"))
    (log.folder / "_last_checkpoint").write_bytes(text.encode("latin-1"))
    assert live(log) == ["1", "2", "3", "4"]


def test_the_newest_version_is_listed_from_the_announced_checkpoint_on(log: WrittenLog) -> None:
    five_commits(log)
    log.checkpoint(3, *HEAD, *map(add, "0123"))
    log.announce(version=3)
    found = list_for_latest(STORES, str(log.root))
    assert set(found.commits) == {3, 4}
    assert found.latest == 4


def test_what_else_lies_in_the_log_is_none_of_it(log: WrittenLog) -> None:
    """Checksums, temporary files and folders of other writers, whatever their files are called."""
    five_commits(log)
    for name in (
        f".{5:020}.json.crc",
        f"{5:020}.crc",
        f"{5:020}.json.tmp",
        f"{5:019}.json",
        f"{5:020}.checkpoint.json",
        f"{5:020}.checkpoint.parquet.crc",
        f".tmp/{5:020}.json",
        f"0/{5:020}.json",
        f"_commits/{5:020}.{'a' * 36}.json",
        f"_staged_commits/{5:020}.json",
        f"backup/{5:020}.json",
        f"backup/{5:020}.checkpoint.parquet",
        "notes.json",
    ):
        (log.folder / name).parent.mkdir(exist_ok=True)
        (log.folder / name).write_text("{")
    assert listing(log).latest == 4
    assert live(log) == ["1", "2", "3", "4"]


def test_an_empty_log_is_no_table(log: WrittenLog) -> None:
    with pytest.raises(Unserveable, match="There is no Delta table at"):
        read_delta(str(log.root))
    with pytest.raises(TableFilesMissing, match="there is no Delta log"):
        assert listing(log).latest


def test_a_later_listing_adds_to_an_earlier_one(log: WrittenLog) -> None:
    five_commits(log)
    known = listing(log)
    log.commit(5, add("5"))
    log.checkpoint(5, *HEAD, *map(add, "12345"))
    known = known.grown_by(list_log(STORES, str(log.root), 5))
    assert known.latest == 5
    assert known.commits.keys() == set(range(6))
    assert known.checkpoints.keys() == {5}


def test_whoever_looks_through_a_listing_finds_it_as_it_was(log: WrittenLog) -> None:
    """Other threads read a listing while it grows: what they iterate over stays."""
    five_commits(log)
    known = listing(log)
    commits, checkpoints = known.commits, known.checkpoints
    log.commit(5, add("5"))
    log.checkpoint(5, *HEAD, *map(add, "12345"))
    grown = known.grown_by(list_log(STORES, str(log.root), 5))
    assert (known.latest, grown.latest, grown.since) == (4, 5, 0)
    assert (commits.keys(), checkpoints.keys()) == (set(range(5)), set())


BROKEN = {
    "cut off": '{"add":{"path":"x","si',
    "no JSON": "add x",
    "no object": "[1]",
    "an action that is none": '{"add":5}',
    "a file without a path": '{"add":{"size":1}}',
    "a file without a size": '{"add":{"path":"x"}}',
    "a path that is none": '{"add":{"path":5,"size":1}}',
    "a size that is none": '{"add":{"path":"x","size":"large"}}',
    "a size beyond all": '{"add":{"path":"x","size":18446744073709551615}}',
    "a vector that is none": '{"add":{"path":"x","size":1,"deletionVector":"y"}}',
    "half a vector": '{"add":{"path":"x","size":1,"deletionVector":{"storageType":"u"}}}',
    "a vector without a size": (
        '{"add":{"path":"x","size":1,"deletionVector":{"storageType":"i","pathOrInlineDv":"0"}}}'
    ),
    "a removal of nothing": '{"remove":{}}',
    "no text at all": "\xff",
    "a schema that is none": '{"metaData":{"id":"i","schemaString":"{","partitionColumns":[]}}',
    "no schema": '{"metaData":{"id":"i","partitionColumns":[]}}',
    "metadata that is none": '{"metaData":"x"}',
    "a partition that is no column": (
        '{"metaData":{"id":"i","schemaString":"{\\"type\\":\\"struct\\",\\"fields\\":[]}","partitionColumns":["p"]}}'
    ),
    "a protocol that is none": '{"protocol":{"minReaderVersion":"x"}}',
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_commit_that_is_not_whole_is_no_version(log: WrittenLog, case: str) -> None:
    five_commits(log)
    (log.folder / f"{5:020}.json").write_bytes(BROKEN[case].encode("latin-1"))
    with pytest.raises(Unserveable, match=r"cannot be read at version 5: .*not whole|has no path or no size"):
        read_delta(str(log.root))
    assert live(log, 4) == ["1", "2", "3", "4"]
