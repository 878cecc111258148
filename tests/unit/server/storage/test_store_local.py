"""The local disk behaves as the other stores: objects by exact name, listed in key order, faults by their kind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshare_server.errors import StoreDenied, StoreMissing, Unavailable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import StoredObject, Stores
from lakeshare_server.storage.stores import UNFINISHED

STORES = Stores(ServerSettings(_env_file=None))
AWKWARD = [
    "a b",
    "a%20b",
    "a+b=c#d?e&f",
    "ü",
    "~*'()",
    "back\\slash",
    "%2F",
    " ",
    'x[1]{2}|^`"<>',
    "日本",
    "tab\tx",
]


def put(root: Path, *names: str) -> list[str]:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return [f"{root}/{name}" for name in names]


def listed(root: Path | str, after: str | None = None) -> list[str]:
    return [found.location.removeprefix(f"{root}/") for found in STORES.list(str(root), after)]


@pytest.mark.parametrize("name", AWKWARD)
def test_an_awkward_name_is_read_opened_listed_and_found_as_it_is(tmp_path: Path, name: str) -> None:
    (location,) = put(tmp_path, f"deep/{name}")
    assert STORES.read(location) == f"deep/{name}".encode()
    assert STORES.read(f"file://{location}") == f"deep/{name}".encode()
    with STORES.open(location) as file:
        file.seek(5)
        assert file.read() == name.encode()
    found = STORES.head(location)
    assert found is not None
    assert (found.location, found.size_bytes) == (location, len(f"deep/{name}".encode()))
    assert found.modified_ms == Path(location).stat().st_mtime_ns // 1_000_000
    assert list(STORES.list(f"{tmp_path}/deep")) == [found]


def test_a_name_that_is_no_text_is_listed_and_read(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xfe"
    Path(os.fsdecode(name)).write_bytes(b"x")
    (found,) = STORES.list(str(tmp_path))
    assert STORES.read(found.location) == b"x"
    with STORES.open(found.location) as file:
        assert file.read() == b"x"


def test_a_parquet_file_is_read_by_range(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "f.parquet")
    with STORES.open(f"{tmp_path}/f.parquet") as file:
        assert pq.read_table(file)["n"].to_pylist() == [1, 2, 3]


NAMES = st.lists(st.text("ab-/0.", min_size=1, max_size=3).map(lambda t: t.strip("/.") or "c"), max_size=12)


@given(NAMES, st.text("ab-/0", max_size=3))
def test_the_order_of_a_listing_is_that_of_keys_and_it_starts_after_any_key(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], after: str
) -> None:
    root = tmp_path_factory.mktemp("lake")
    for name in names:
        if not any((root / name).is_dir() for _ in [0]) and all(
            not p.is_file() for p in (root / name).parents
        ):
            put(root, name)
    keys = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    assert listed(root) == keys
    assert listed(root, f"{root}/{after}") == [key for key in keys if key > after]


def test_a_sibling_with_the_same_beginning_is_not_below(tmp_path: Path) -> None:
    put(tmp_path, "t/x", "t2/x", "t-1")
    assert listed(tmp_path / "t") == ["x"]
    assert [found.location for found in STORES.list(f"{tmp_path}/t/")] == [f"{tmp_path}/t/x"]


def test_nothing_there_lists_nothing_and_is_missing(tmp_path: Path) -> None:
    put(tmp_path, "t/x")
    for gone in ("gone", "t", "t/x/y", "n" * 300, "nul\0"):
        location = f"{tmp_path}/{gone}"
        assert STORES.head(location) is None
        for read in (STORES.read, STORES.open):
            with pytest.raises(StoreMissing) as caught:
                read(location)
            assert caught.value.location == location
    assert listed(tmp_path / "gone") == []
    assert listed(tmp_path / "t/x") == []


def test_links_are_followed_a_circle_of_them_ends_and_only_files_are_listed(tmp_path: Path) -> None:
    put(tmp_path, "t/x")
    (tmp_path / "t/again").symlink_to(tmp_path / "t")
    (tmp_path / "t/file").symlink_to(tmp_path / "t/x")
    (tmp_path / "t/broken").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "t/pipe")
    assert listed(tmp_path / "t") == ["file", "x"]


@pytest.fixture
def nobody() -> Iterator[None]:
    """Without the rights of root, whom no file is denied."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_is_denied(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (location,) = put(tmp_path, "t/x")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    Path(location).chmod(0)
    request.getfixturevalue("nobody")
    for read in (STORES.read, STORES.open):
        with pytest.raises(StoreDenied) as caught:
            read(location)
        assert caught.value.location == location


def test_a_folder_that_may_not_be_listed_is_denied_not_empty(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    put(tmp_path, "t/x")
    (tmp_path / "t").chmod(0)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    request.getfixturevalue("nobody")
    with pytest.raises(StoreDenied):
        list(STORES.list(f"{tmp_path}/t"))


def test_a_disk_that_fails_is_passing(tmp_path: Path) -> None:
    # /proc/self/mem at position 0 answers with an input/output error, as a failing disk does.
    with pytest.raises(Unavailable, match="/proc/self/mem cannot be read"):
        STORES.read("/proc/self/mem")


def test_a_file_that_vanishes_during_a_listing_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, "a", "b/x", "c")
    listing = STORES.list(str(tmp_path))
    first = next(listing)
    assert isinstance(first, StoredObject)
    (tmp_path / "c").unlink()
    assert [found.location for found in listing] == [f"{tmp_path}/b/x"]


def test_a_file_is_written_whole_replaced_and_only_once_if_it_must_not_exist(tmp_path: Path) -> None:
    location = f"{tmp_path}/new folder/a b"
    assert STORES.write(location, b"one")
    assert not STORES.write(location, b"two", if_absent=True)
    assert STORES.read(location) == b"one"
    assert STORES.write(location, b"two")
    assert STORES.read(location) == b"two"
    assert listed(tmp_path) == ["new folder/a b"]
    assert Path(location).parent.stat().st_mode & 0o077 == 0


def test_a_file_is_uploaded_and_downloaded(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 1000)
    STORES.upload(source, f"{tmp_path}/there/x")
    STORES.download(f"{tmp_path}/there/x", target)
    assert target.read_bytes() == source.read_bytes()
    assert [file.name for file in (tmp_path / "there").iterdir()] == ["x"]


def test_files_and_folders_are_deleted_and_missing_ones_are_no_error(tmp_path: Path) -> None:
    one, other, beside = put(tmp_path, "t/one", "t/deep/other", "t-2/x")
    STORES.delete(one)
    STORES.delete(one)
    assert listed(tmp_path) == ["t-2/x", "t/deep/other"]
    STORES.delete_folder(f"{tmp_path}/t")
    STORES.delete_folder(f"{tmp_path}/t")
    assert (listed(tmp_path), Path(other).parent.exists()) == (["t-2/x"], False)
    assert STORES.read(beside) == b"t-2/x"


def test_a_folder_is_as_old_as_its_files_and_files_that_are_being_written_are_not_listed(
    tmp_path: Path,
) -> None:
    for number, location in enumerate(put(tmp_path, "t/one", "t/deep/two", "t/three"), 1):
        os.utime(location, (number, number))
    (tmp_path / "t" / f"{UNFINISHED}0123").write_bytes(b"part")
    assert STORES.written_between(f"{tmp_path}/t") == (1_000, 3_000)
    assert STORES.written_between(f"{tmp_path}/none") is None


def test_nothing_is_written_below_a_file(tmp_path: Path) -> None:
    (file,) = put(tmp_path, "file")
    with pytest.raises((StoreMissing, Unavailable), match=f"{file}/x"):
        STORES.write(f"{file}/x", b"content")
    assert listed(tmp_path) == ["file"]
