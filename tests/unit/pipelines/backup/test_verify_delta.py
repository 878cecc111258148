"""What is called verified opens at the newest version before as_of; what was lost on the way is healed, or told."""

import datetime as dt
import json
import os
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_pipelines.backup.model import POINT_COPIES, TableProof, Verification, read_table
from tests.builders.backup_lakes import AS_OF, DAY, Lake, at, listed_as
from tests.builders.log_files import PROTOCOL, WrittenLog, add, metadata

ROOT = "sales/orders"
HOUR = dt.timedelta(hours=1)


def commit(lake: Lake, number: int, when: dt.datetime, mode: str = "append") -> set[str]:
    """One more commit of two rows, written at a time; the keys that are new."""
    before = {one.key for one in lake.listing()} if lake.source.exists() else set()
    write_deltalake(str(lake.source / ROOT), pa.table({"n": [number, number + 1]}), mode=mode)  # type: ignore[arg-type]
    new = {one.key for one in lake.listing()} - before
    at(when, *(lake.source / key for key in new))
    return new


def commits(lake: Lake, count: int = 4) -> list[set[str]]:
    """Commits an hour apart, the newest an hour before as_of."""
    return [commit(lake, number, AS_OF - (count - number) * HOUR) for number in range(count)]


def data(keys: set[str]) -> str:
    """The data file among the keys of a commit."""
    return next(key for key in keys if key.endswith(".parquet"))


def log(version: int, kind: str = "json") -> str:
    return f"{ROOT}/_delta_log/{version:020}.{kind}"


def verified(lake: Lake, lost: set[str] = frozenset(), damage=None) -> Verification:  # type: ignore[assignment, no-untyped-def]
    """A whole turn: list (without what is lost), plan, copy, verify."""
    plan = lake.plan(listed_as(lake.listing(), lost))
    copied = lake.copy(changed=damage)
    return lake.verified(plan, copied)


def only(proved: Verification) -> TableProof:
    (proof,) = proved.tables
    return proof


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def test_a_whole_copy_is_verified_at_its_newest_version(lake: Lake) -> None:
    commits(lake)
    proved = verified(lake)
    proof = only(proved)
    assert (proved.status, proof.status, proof.version, proof.rows, proof.level) == (
        "verified",
        "verified",
        3,
        8,
        4,
    )
    assert proof.opened_by is not None
    assert proof.opened_by.startswith("deltalake ")
    assert proof.committed_at == AS_OF - HOUR
    assert DeltaTable(str(proof.mount), version=3).to_pyarrow_dataset().count_rows() == 8


def test_what_was_committed_after_as_of_is_not_in_the_copy(lake: Lake) -> None:
    commits(lake)
    commit(lake, 9, AS_OF + HOUR)
    assert only(verified(lake)).version == 3


@pytest.mark.parametrize("lost", ["data", "commit", "both"])
def test_what_the_listing_lost_is_healed(lake: Lake, lost: str) -> None:
    keys = commits(lake)[2]
    gone = {"data": {data(keys)}, "commit": {log(2)}, "both": keys}[lost]
    proof = only(verified(lake, gone))
    assert (proof.status, proof.version, proof.rows) == ("verified", 3, 8)
    assert set(proof.healed) == gone


def test_commits_behind_the_listing_are_found(lake: Lake) -> None:
    late = commits(lake)[2:]
    proof = only(verified(lake, late[0] | late[1]))
    assert (proof.status, proof.version, proof.rows) == ("verified", 3, 8)


def test_a_file_that_vanished_means_the_newest_version_without_it(lake: Lake) -> None:
    keys = commits(lake)
    plan = lake.plan(lake.listing())
    (lake.source / data(keys[2])).unlink()
    proved = lake.verified(plan, lake.copy())
    proof = only(proved)
    assert (proved.status, proof.status) == ("verified_with_fallback", "verified_with_fallback")
    assert (proof.version, proof.wanted_version, proof.rows) == (1, 3, 4)
    assert proof.missing == (data(keys[2]),)
    assert proof.reasons


def test_a_table_without_a_complete_version_is_degraded_and_says_what_it_lacks(lake: Lake) -> None:
    keys = commits(lake)
    plan = lake.plan(lake.listing())
    (lake.source / data(keys[0])).unlink()
    proof = only(lake.verified(plan, lake.copy()))
    assert (proof.status, proof.version, proof.missing) == ("degraded", None, (data(keys[0]),))
    assert any(word in proof.reasons[-1] for word in ("older points", "restore"))


def test_a_table_that_was_made_anew_is_not_mixed_with_what_was_listed(lake: Lake) -> None:
    """The new table has a version 2 from before as_of; the listing knows the old one's 0 and 1."""
    commits(lake, 2)
    listing = lake.listing()
    for path in sorted((lake.source / ROOT).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    for number in range(3):
        commit(lake, 100 + number, AS_OF - dt.timedelta(minutes=9 - number))
    plan = lake.plan(listing)
    assert only(lake.verified(plan, lake.copy())).status == "degraded"


def test_a_copy_with_other_content_of_the_same_size_is_noticed_and_made_again(lake: Lake) -> None:
    key = data(commits(lake)[1])

    def damage(target: Path) -> None:
        path = target / "objects" / key
        found = path.stat()
        content = path.read_bytes()
        path.write_bytes(content[:20] + bytes(8) + content[28:])
        os.utime(path, ns=(found.st_mtime_ns, found.st_mtime_ns))

    proof = only(verified(lake, damage=damage))
    assert (proof.status, proof.rows, proof.healed) == ("verified", 8, (key,))


def test_what_an_earlier_point_holds_is_looked_at_again(lake: Lake) -> None:
    first = commits(lake)
    plan = lake.plan(lake.listing())
    copied = lake.copy()
    lake.point(plan, copied, lake.verified(plan, copied))
    held = [one.key for one in lake.listing()]
    damaged = lake.target / "objects" / data(first[0])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    commit(lake, 4, AS_OF + HOUR)
    next_day = "2026-11-21"
    later = lake.plan(lake.listing(), as_of=AS_OF + 24 * HOUR, day=next_day, held=held)
    proof = only(lake.verified(later.model_copy(update={"previous": DAY}), lake.copy(next_day)))
    assert (proof.status, proof.version, proof.rows, proof.healed) == ("verified", 4, 10, (data(first[0]),))


def test_a_checksum_file_that_says_otherwise_is_believed(lake: Lake) -> None:
    commits(lake)
    path = lake.source / log(3, "crc")
    path.write_text(json.dumps({"numFiles": 5, "tableSizeBytes": 1}))
    at(AS_OF - HOUR, path)
    proof = only(verified(lake))
    assert (proof.status, proof.version) == ("verified_with_fallback", 2)
    assert "says 5 files" in " ".join(proof.reasons)


def test_a_checkpoint_that_says_otherwise_is_believed(lake: Lake) -> None:
    commits(lake)
    elsewhere = WrittenLog(lake.base / "other")
    made = elsewhere.checkpoint(3, PROTOCOL, metadata({"n": "long"}), add("a"))
    path = lake.source / log(3, "checkpoint.parquet")
    made.rename(path)
    at(AS_OF - HOUR, path)
    proof = only(verified(lake))
    assert (proof.status, proof.version) == ("verified_with_fallback", 2)


def test_an_object_that_nothing_is_reported_of_fails_the_whole_copy(lake: Lake) -> None:
    commits(lake)
    plan = lake.plan(lake.listing())
    copied = lake.copy()
    commit(lake, 9, AS_OF - HOUR)
    plan = lake.plan(lake.listing())
    proved = lake.verified(plan, copied)
    assert proved.status == "failed"
    assert not proved.accounted_for


@pytest.mark.parametrize(("is_gone", "status"), [(True, "verified_with_fallback"), (False, "verified")])
def test_a_plain_file_that_vanished_is_told(lake: Lake, is_gone: bool, status: str) -> None:
    commits(lake)
    path = lake.source / "notes/readme.txt"
    path.parent.mkdir()
    path.write_text("hello")
    at(AS_OF - HOUR, path)
    plan = lake.plan(lake.listing())
    if is_gone:
        path.unlink()
    proved = lake.verified(plan, lake.copy())
    assert (proved.status, proved.failed_objects) == (status, int(is_gone))


@pytest.mark.parametrize(
    ("external", "said"), [("refuse", "`external: follow`"), ("follow", "reads the originals")]
)
def test_a_table_with_files_outside_of_the_source_is_degraded(
    tmp_path: Path, external: str, said: str
) -> None:
    """Followed or not: a copy of its log still names the originals, and nobody has proved anything of the copies."""
    lake = Lake(tmp_path, declared=Lake(tmp_path).backup.model_copy(update={"external": external}))
    commits(lake, 1)
    outside = lake.base / "elsewhere.parquet"
    outside.write_bytes((lake.source / data({one.key for one in lake.listing()})).read_bytes())
    at(AS_OF - HOUR, outside)
    line = add(outside.as_uri(), size=outside.stat().st_size, stats='{"numRecords":2}')
    path = lake.source / log(1)
    path.write_text(json.dumps(line))
    at(AS_OF - HOUR, path)
    proof = only(verified(lake))
    assert (proof.status, proof.version, proof.wanted_version) == ("degraded", 0, 1)
    assert any(said in reason for reason in proof.reasons), proof.reasons


def test_levels_are_told_object_by_object(lake: Lake) -> None:
    commits(lake)
    proved = verified(lake)
    held = read_table(lake.workspace().rows("held"), POINT_COPIES)
    assert held.num_rows == proved.objects == len(lake.listing())
    assert set(held["level"].to_pylist()) == {3}
    assert proved.size_bytes == sum(one.size_bytes or 0 for one in lake.listing())


def test_a_dated_copy_is_cut_at_its_version(tmp_path: Path) -> None:
    """What speaks of later versions would make readers open it at those, or not at all."""
    lake = Lake(tmp_path, "dated")
    keys = commits(lake)
    DeltaTable(str(lake.source / ROOT), version=1).create_checkpoint()
    DeltaTable(str(lake.source / ROOT), version=3).create_checkpoint()
    at(AS_OF - HOUR, *(lake.source / ROOT / "_delta_log").glob("*.checkpoint.parquet"))
    plan = lake.plan(lake.listing())
    (lake.source / data(keys[3])).unlink()
    proof = only(lake.verified(plan, lake.copy()))
    assert (proof.status, proof.version, proof.wanted_version) == ("verified_with_fallback", 2, 3)
    table = DeltaTable(str(lake.target / ROOT))
    assert table.version() == 2
    assert sorted(path.name for path in (lake.target / ROOT / "_delta_log").iterdir()) == [
        "00000000000000000000.json",
        "00000000000000000001.checkpoint.parquet",
        "00000000000000000001.json",
        "00000000000000000002.json",
        "_last_checkpoint",
    ]
    held = read_table(lake.workspace().rows("held"), POINT_COPIES)
    assert all((lake.target / key).exists() for key in held["stored_key"].to_pylist())
    assert json.loads((lake.target / ROOT / "_delta_log/_last_checkpoint").read_text())["version"] == 1


def test_a_checkpoint_of_version_2_and_classic_name_has_the_files_of_its_sidecars(tmp_path: Path) -> None:
    """A dated copy that is cut keeps them (PROTOCOL.md, "Checkpoint naming")."""
    lake = Lake(tmp_path, "dated")
    keys = commits(lake)
    folder, written = lake.source / ROOT / "_delta_log", WrittenLog(lake.base / "other")
    first = [folder / f"{version:020}.json" for version in (0, 1)]
    actions = [json.loads(line) for path in first for line in path.read_text().splitlines()]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7} | {
        name: ["v2Checkpoint"] for name in ("readerFeatures", "writerFeatures")
    }
    written.v2(
        1,
        "classic",
        {"protocol": protocol},
        next(action for action in actions if "metaData" in action),
        sidecars=[[action] for action in actions if "add" in action],
    )
    for path in first:
        path.unlink()
    shutil.copytree(written.folder, folder, dirs_exist_ok=True)
    at(AS_OF - 3 * HOUR, *folder.rglob("*.parquet"))
    plan = lake.plan(lake.listing())
    (lake.source / data(keys[3])).unlink()
    proof = only(lake.verified(plan, lake.copy()))
    assert (proof.status, proof.version, proof.rows, proof.oldest_version) == (
        "verified_with_fallback",
        2,
        6,
        1,
    )
    assert len(list((lake.target / ROOT / "_delta_log/_sidecars").iterdir())) == 2
    assert DeltaTable(str(lake.target / ROOT)).version() == 2


def test_files_that_a_run_staged_below_a_table_are_a_part_of_it(lake: Lake) -> None:
    """What was staged is a Delta table of its own below the other, whose log names its files after the merge."""
    commits(lake, 1)
    staged = lake.source / ROOT / "_staged/run-1"
    write_deltalake(str(staged), pa.table({"n": [7, 8, 9]}))
    (name,) = [path.name for path in staged.glob("*.parquet")]
    size_bytes = (staged / name).stat().st_size
    line = add(f"_staged/run-1/{name}", size=size_bytes, stats='{"numRecords":3}')
    (lake.source / log(1)).write_text(json.dumps(line))
    at(AS_OF - HOUR, *(path for path in lake.source.rglob("*") if path.is_file()))
    proved = lake.made(DAY, lake.listing())
    found = {proof.table.root: (proof.status, proof.version, proof.rows) for proof in proved.tables}
    assert found[ROOT] == ("verified", 1, 5)
    lost = lake.made("2026-11-21", listed_as(lake.listing(), {f"{ROOT}/_staged/run-1/{name}"}))
    assert {proof.table.root: proof.status for proof in lost.tables}[ROOT] == "verified"


def test_a_copy_that_lacks_commits_of_its_catalog_is_degraded(lake: Lake) -> None:
    """The catalog may count the staged commit: the copied log would open at an older state than the table's."""
    commits(lake)
    staged = lake.source / f"{ROOT}/_delta_log/_staged_commits"
    staged.mkdir()
    published = staged / f"{3:020}.{uuid.uuid4()}.json"
    published.write_text(json.dumps({"commitInfo": {}}))
    late = staged / f"{5:020}.{uuid.uuid4()}.json"
    late.write_text(json.dumps({"commitInfo": {}}))
    at(AS_OF - HOUR, published)
    at(AS_OF + HOUR, late)
    assert only(verified(lake)).status == "verified"
    unpublished = staged / f"{4:020}.{uuid.uuid4()}.json"
    unpublished.write_text(json.dumps({"commitInfo": {}}))
    at(AS_OF - HOUR / 2, unpublished)
    proof = only(verified(lake))
    assert (proof.status, proof.version, proof.rows) == ("degraded", 3, 8)
    assert any("version 4" in reason and "catalog" in reason for reason in proof.reasons)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_version_with_less_than_half_of_the_rows_is_no_fallback(lake: Lake, kept: int) -> None:
    """Every version has two more rows; the file of the one behind `kept` is gone."""
    done = commits(lake, 4)
    gone = data(done[kept + 1])

    def damage(target: Path) -> None:
        (lake.source / gone).unlink()
        (target / "objects" / gone).unlink()

    proof = only(verified(lake, damage=damage))
    assert (proof.version, proof.rows, proof.wanted_version) == (kept, 2 * kept + 2, 3)
    assert proof.status == ("degraded" if kept == 0 else "verified_with_fallback")
    assert any("the newest one has 8: it is no fallback" in reason for reason in proof.reasons) == (kept == 0)
