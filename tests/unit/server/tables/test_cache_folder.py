"""The folder of what is built on demand: built once, by anybody; bounded; and whole, whatever happens to its files."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lakeshare_server.errors import Unavailable, Unserveable
from lakeshare_server.tables import TableSnapshot, index, read_delta, write_index
from lakeshare_server.tables.index import ABANDONED_AFTER_S, OPEN_FILES, PREFIX, CacheFolder, IndexCache
from tests.builders.lake_tables import a_delta_table


class Texts:
    """A folder of texts, with a note of what was written and opened."""

    def __init__(self, folder: Path, max_bytes: int = 10**6, kind: str = "text") -> None:
        self.written: list[str] = []
        self.opened: list[str] = []
        self.folder = CacheFolder(folder, kind, max_bytes, self._open)

    def get(self, name: str, text: str | None = None) -> str:
        def write(path: Path) -> None:
            self.written.append(name)
            path.write_text(name if text is None else text)

        return self.folder.get((name,), write)

    def _open(self, path: Path) -> str:
        text = path.read_text()
        self.opened.append(text)
        if text.startswith("damaged"):
            raise ValueError("damaged")
        return text


def kept(folder: Path) -> set[str]:
    return {file.read_text() for file in folder.glob("*.arrow")}


def test_what_was_built_is_not_built_again(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    assert [texts.get("a"), texts.get("a"), texts.get("b"), texts.get("a")] == ["a", "a", "b", "a"]
    assert texts.written == texts.opened == ["a", "b"]
    again = Texts(tmp_path)
    assert again.get("a") == "a"
    assert again.written == []


def test_only_what_is_there_is_found(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    assert texts.folder.find(("a",)) is None
    texts.get("a")
    assert texts.folder.find(("a",)) == "a"
    assert texts.written == ["a"]


def test_keys_are_told_apart_by_every_part(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    keys: list[tuple[object, ...]] = [("a", 1), ("a", "1"), ("a1",), ("a",), ("a", 1, None), ("a", None, 1)]
    for place, key in enumerate(keys):
        texts.folder.get(key, lambda path, place=place: path.write_text(str(place)) and None)
    assert [texts.folder.find(key) for key in keys] == [str(place) for place in range(len(keys))]


def test_many_threads_build_once(tmp_path: Path) -> None:
    built: list[int] = []
    folder = CacheFolder(tmp_path, "text", 10**6, Path.read_text)

    def write(path: Path) -> None:
        built.append(1)
        time.sleep(0.1)
        path.write_text("x")

    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(folder.get(("k",), write))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["x"] * 8
    assert len(built) == 1


BUILD = """
import sys, time
from pathlib import Path
from lakeshare_server.tables.index import CacheFolder

def write(path):
    print("built")
    time.sleep(0.3)
    path.write_text("x")

assert CacheFolder(Path(sys.argv[1]), "text", 10**6, Path.read_text).get(("k",), write) == "x"
"""


def test_many_processes_build_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", BUILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(said) == ["", "", "built\n"]


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    texts = Texts(tmp_path, max_bytes=3)
    for name in "abc":
        texts.get(name)
        _pass_time(tmp_path)
    Texts(tmp_path).get("a")
    texts.get("d")
    assert kept(tmp_path) == {"a", "c", "d"}
    assert Texts(tmp_path).folder.find(("b",)) is None


def test_what_is_in_use_is_not_what_was_used_longest_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open file is found in memory: others have to see that it is in use."""
    monkeypatch.setattr(index, "TOUCH_EVERY_S", 0.0)
    texts = Texts(tmp_path, max_bytes=2)
    for name in "ab":
        texts.get(name)
        _pass_time(tmp_path)
    assert texts.get("a") == "a"
    texts.get("c")
    assert kept(tmp_path) == {"a", "c"}
    [a_file] = [file for file in tmp_path.glob("*.arrow") if file.read_text() == "a"]
    a_file.unlink()
    assert texts.get("a") == "a"
    assert texts.opened == ["a", "b", "c"]


def test_what_is_in_use_is_marked_from_time_to_time_only(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    texts.get("a")
    _pass_time(tmp_path)
    [file] = tmp_path.glob("*.arrow")
    before = file.stat().st_mtime_ns
    texts.get("a")
    assert file.stat().st_mtime_ns == before


def test_another_worker_may_make_room_before_what_was_built_is_used(tmp_path: Path) -> None:
    other, names = Texts(tmp_path, max_bytes=1), iter("bcdef")

    def open_late(path: Path) -> str:
        other.get(next(names))
        return path.read_text()

    folder = CacheFolder(tmp_path, "text", 1, open_late)
    assert folder.get(("a",), lambda path: path.write_text("a") and None) == "a"


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    abandoned, at_work = tmp_path / f"{PREFIX}1", tmp_path / f"{PREFIX}2"
    for file in (abandoned, at_work):
        file.write_text("half")
    long_ago = time.time() - ABANDONED_AFTER_S - 60
    os.utime(abandoned, (long_ago, long_ago))
    Texts(tmp_path).get("a")
    assert not abandoned.exists()
    assert at_work.exists()


def _pass_time(folder: Path) -> None:
    """Make all that is there a second older."""
    for file in folder.glob("*.arrow"):
        before = file.stat()
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns - 10**9))


def test_what_is_larger_than_the_folder_is_kept_alone(tmp_path: Path) -> None:
    texts = Texts(tmp_path, max_bytes=3)
    texts.get("a")
    _pass_time(tmp_path)
    assert texts.get("b", "much larger") == "much larger"
    assert kept(tmp_path) == {"much larger"}


def test_what_was_removed_or_damaged_is_built_again(tmp_path: Path) -> None:
    Texts(tmp_path).get("a")
    [file] = tmp_path.glob("*.arrow")
    file.unlink()
    texts = Texts(tmp_path)
    assert texts.get("a") == "a"
    file.write_text("damaged")
    texts = Texts(tmp_path)
    assert texts.get("a") == "a"
    assert texts.written == ["a"]


def test_what_is_no_good_any_more_is_built_again(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    texts.get("a", "old")
    found = texts.folder.get(("a",), lambda path: path.write_text("new") and None, lambda text: text == "new")
    assert found == "new"
    assert texts.get("a") == "new"


def test_a_build_that_fails_leaves_nothing_and_the_next_one_may_succeed(tmp_path: Path) -> None:
    texts = Texts(tmp_path)

    def fail(path: Path) -> None:
        path.write_text("half")
        raise Unserveable("no", "no")

    with pytest.raises(Unserveable):
        texts.folder.get(("a",), fail)
    assert kept(tmp_path) == set()
    assert [file for file in tmp_path.iterdir() if file.name.startswith(".writing")] == []
    assert texts.get("a") == "a"


def test_a_folder_that_cannot_be_written_is_said_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(Unavailable, match=r"cannot be written.*LAKESHARE_STATE_DIR") as refused:
        Texts(tmp_path / "taken").get("a")
    assert str(tmp_path) not in str(refused.value)

    def no_room(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(Unavailable, match="No space left on device"):
        Texts(tmp_path).folder.get(("a",), no_room)


def test_no_more_files_are_kept_open_than_said(tmp_path: Path) -> None:
    texts = Texts(tmp_path)
    for number in range(OPEN_FILES + 1):
        texts.get(f"k{number}")
    texts.get("k1")
    assert len(texts.opened) == OPEN_FILES + 1
    texts.get("k0")
    assert texts.opened[-1] == "k0"
    assert len(texts.opened) == OPEN_FILES + 2


def test_an_open_index_stays_readable_when_its_file_makes_room(tmp_path: Path) -> None:
    snapshot = read_delta(str(a_delta_table(tmp_path / "table")))
    cache = IndexCache(tmp_path / "cache", max_bytes=1)
    first = cache.get(("first",), lambda: snapshot)
    before = [batch.to_pylist() for batch in first.batches()]
    cache.get(("second",), lambda: snapshot)
    [left] = (tmp_path / "cache").glob("*.arrow")
    assert [batch.to_pylist() for batch in first.batches()] == before
    assert len(before[0]) == 3
    digest = hashlib.sha256(left.read_bytes()).hexdigest()
    assert digest != left.stem, "these are named by what they stand for, not by their content"


def test_an_index_of_another_host_is_taken_if_it_can_be_read_and_else_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = read_delta(str(a_delta_table(tmp_path / "table")))
    theirs = write_index(snapshot, tmp_path / "theirs").path
    cache, built = IndexCache(tmp_path / "cache", max_bytes=10**6), list[str]()

    def get(name: str, fetch: Callable[[Path], bool]) -> list[str]:
        def build() -> TableSnapshot:
            built.append(name)
            return snapshot

        batches = cache.get((name,), build, fetch).batches()
        return [path for batch in batches for path in batch.column("path").to_pylist()]

    expected = get("missing", lambda _: False)
    assert get("whole", lambda path: bool(path.write_bytes(theirs.read_bytes()))) == expected
    assert get("damaged", lambda path: bool(path.write_bytes(theirs.read_bytes()[:-9]))) == expected
    monkeypatch.setattr(index, "LAYOUT", index.LAYOUT + 1)
    assert get("older", lambda path: bool(path.write_bytes(theirs.read_bytes()))) == expected
    assert built == ["missing", "damaged", "older"]


def test_a_build_may_need_a_build_of_another_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Indexes of changes are made from file indexes; with one lock for all keys, any two keys meet at it.
    monkeypatch.setattr(index, "LOCKS", 1)
    inner, outer = Texts(tmp_path, kind="inner"), Texts(tmp_path, kind="outer")
    found: list[str] = []

    def build() -> None:
        found.append(
            outer.folder.get(("outer",), lambda path: path.write_text(inner.get("needed") + " and more"))
        )

    # Given up by the test, and not by its worker, if it never ends.
    building = threading.Thread(target=build, daemon=True)
    building.start()
    building.join(30)
    assert found == ["needed and more"]
