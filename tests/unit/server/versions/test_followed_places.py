"""Where a followed table may be: how it is spelt, and which metadata file of an Iceberg folder is current."""

import gzip
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lakeshare_server.errors import (
    BadRequest,
    LakeshareError,
    StoreMissing,
    TableFilesMissing,
    Unavailable,
    Unserveable,
)
from lakeshare_server.nessie import NessieApi
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import normalise_followed_location, read_unfollowed
from lakeshare_server.versions.followed_iceberg import hide_locations
from lakeshare_server.versions.metadata_sources import MetadataFolder
from tests.builders.answering_store import answering_store, said
from tests.builders.followed_iceberg import OwnedTable
from tests.builders.http_server import listening

SETTINGS = ServerSettings(_env_file=None)
UUID = "0f1e2d3c-0000-4000-8000-00000000000{}"


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two catalogs, one from a file and one from the environment."""
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  filed:\n    uri: http://127.0.0.1:9/\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD_LAKE__URI", "http://127.0.0.1:9/api/v2")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/data/orders", "/data/orders"),
        ("file:///data/orders", "/data/orders"),
        ("s3a://lake/orders", "s3://lake/orders"),
        ("s3://lake/orders/metadata/v3.metadata.json", "s3://lake/orders/metadata/v3.metadata.json"),
        ("iceberg:filed/sales.orders", "iceberg:filed/sales.orders"),
        ("iceberg:prod-lake/a.b.c", "iceberg:prod-lake/a.b.c"),
        ("nessie:prod-lake/sales.orders", "nessie:prod-lake/sales.orders"),
        ("nessie:prod-lake/sales.orders@etl/one", "nessie:prod-lake/sales.orders@etl/one"),
    ],
)
def test_places_are_kept_as_they_are_meant(given: str, kept: str) -> None:
    assert normalise_followed_location(given, SETTINGS) == kept


def test_a_relative_path_is_below_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert normalise_followed_location("orders", SETTINGS) == str(tmp_path / "orders")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("iceberg:filed", "iceberg:CATALOG/NAMESPACE.TABLE"),
        ("iceberg:filed/orders", "iceberg:CATALOG/NAMESPACE.TABLE"),
        ("iceberg:filed/sales.", "iceberg:CATALOG/NAMESPACE.TABLE"),
        ("iceberg:/sales.orders", "iceberg:CATALOG/NAMESPACE.TABLE"),
        ("nessie:filed/sales.orders@", "iceberg:CATALOG/NAMESPACE.TABLE"),
        ("iceberg:filed/sales.orders@dev", "Only Nessie has branches"),
        ("iceberg:other/sales.orders", r"known are: filed, prod-lake.*PYICEBERG_CATALOG__OTHER__URI"),
        ("ftp://host/orders", "s3://bucket/key"),
    ],
)
def test_other_places_are_refused_before_anything_is_read(given: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        normalise_followed_location(given, SETTINGS)


class Folder:
    """A table's metadata folder, in which files are named and otherwise empty."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "metadata").mkdir(parents=True)
        self.source = MetadataFolder(Stores(SETTINGS), str(root))

    def write(self, *names: str) -> None:
        for name in names:
            (self.root / "metadata" / name).write_text(name)

    def newest(self) -> str:
        return self.source.current(None).metadata_location.rsplit("/", 1)[1]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "orders")


def catalogs(number: int, which: int = 0, ending: str = ".metadata.json") -> str:
    return f"{number:05d}-{UUID.format(which)}{ending}"


@pytest.mark.parametrize(
    ("names", "hint", "newest"),
    [
        (("v1.metadata.json", "v2.metadata.json", "v10.metadata.json"), None, "v10.metadata.json"),
        (("v1.metadata.json", "v2.metadata.json"), "2", "v2.metadata.json"),
        # Whoever wrote v3 and v4 has not come to write the hint.
        (("v2.metadata.json", "v3.metadata.json", "v4.gz.metadata.json"), "2", "v4.gz.metadata.json"),
        (("v3.metadata.json",), "1", "v3.metadata.json"),
        (("v3.metadata.json",), "junk", "v3.metadata.json"),
        (("v3.metadata.json.gz",), "3\n", "v3.metadata.json.gz"),
        ((catalogs(0), catalogs(1), catalogs(2)), None, catalogs(2)),
        (
            (catalogs(1), catalogs(2, ending=".gz.metadata.json")),
            None,
            catalogs(2, ending=".gz.metadata.json"),
        ),
        ((catalogs(99_999), catalogs(100_000)), None, catalogs(100_000)),
        ((catalogs(3), "snap-17.avro", "a-m0.avro", "00009-other.json"), None, catalogs(3)),
        # Hints that name the file, with and without its ending.
        ((catalogs(1), "final.metadata.json"), "final.metadata.json", "final.metadata.json"),
        ((catalogs(1), "final.metadata.json"), "final", "final.metadata.json"),
        ((catalogs(1), catalogs(2, 0), catalogs(2, 1)), catalogs(2, 1), catalogs(2, 1)),
        (("v1.metadata.json", catalogs(0)), f"{catalogs(0, ending='')}\n", catalogs(0)),
        (("v2.metadata.json", "v3.metadata.json.gz"), "2", "v3.metadata.json.gz"),
        (("v1712345678901000000.metadata.json",), None, "v1712345678901000000.metadata.json"),
        (("v2.metadata.json", "old.metadata.json"), "2", "v2.metadata.json"),
        ((catalogs(3), f".{catalogs(4)}"), None, catalogs(3)),
        (("v3.gz.metadata.json", "v4.metadata.json"), "v3", "v3.gz.metadata.json"),
        (("v3.metadata.json.gz", "v4.metadata.json"), "v3", "v3.metadata.json.gz"),
    ],
)
def test_the_newest_metadata_file_is_found(
    folder: Folder, names: tuple[str, ...], hint: str | None, newest: str
) -> None:
    folder.write(*names)
    if hint is not None:
        (folder.root / "metadata" / "version-hint.text").write_text(hint)
    assert folder.newest() == newest


@pytest.mark.parametrize(
    ("names", "hint", "said"),
    [
        ((catalogs(1), catalogs(2, 0), catalogs(2, 1)), None, "2 metadata files of number 2"),
        (("v1.metadata.json", catalogs(0)), None, "of a Hadoop catalog and of another one"),
        (
            (catalogs(1), "b.metadata.json", "a.gz.metadata.json"),
            None,
            r"no order \(a.gz.metadata.json, b.meta",
        ),
        (("v1.metadata.json", "v2-copy.metadata.json"), None, r"no order \(v2-copy.metadata.json\)"),
        (("v1.metadata.json", "V2.metadata.json"), "junk", r"no order \(V2.metadata.json\)"),
        (("metadata.json", "only.metadata.json"), None, r"no order \(only.metadata.json\)"),
        ((catalogs(1),), catalogs(2), f"a hint that names {catalogs(2)}, which is not there"),
        (("v1.metadata.json", "v3.metadata.json"), "4", "up to number 3 and a hint that says 4"),
        ((catalogs(1),), catalogs(2, ending=""), f"a hint that names {catalogs(2, ending='')}, which is not"),
        (("v1.metadata.json",), "v2", "a hint that names v2, which is not there"),
        (("v1.metadata.json",), "s3://lake/t/metadata/v2.metadata.json", "no file of its folder"),
        (("v1.metadata.json",), "../metadata/v1", "no file of its folder"),
        (("v3.metadata.json", catalogs(0)), "3", "a number, and metadata files of a catalog"),
        (("v3.metadata.json", "v4.old.metadata.json"), None, r"no order \(v4.old.metadata.json\)"),
        (("v3.metadata.json", "v\uff14.metadata.json"), None, "no order"),
    ],
)
def test_a_folder_that_does_not_tell_which_file_is_current_is_refused(
    folder: Folder, names: tuple[str, ...], hint: str | None, said: str
) -> None:
    folder.write(*names)
    if hint is not None:
        (folder.root / "metadata" / "version-hint.text").write_text(hint)
    with pytest.raises(Unserveable, match=rf"{said}.*iceberg:CATALOG"):
        folder.newest()


@pytest.mark.parametrize(
    ("begun", "between", "later"),
    [
        ("v7.metadata.json", "v8.metadata.json", "v9.gz.metadata.json"),
        ("v7.metadata.json.gz", "v8.metadata.json.gz", "v9.metadata.json"),
        (catalogs(7), catalogs(8), catalogs(9)),
        (catalogs(99_999), catalogs(100_000), catalogs(100_001)),
        (catalogs(99_998), catalogs(99_999), catalogs(100_000)),
    ],
)
def test_later_looks_find_the_files_that_came_since(
    folder: Folder, begun: str, between: str, later: str
) -> None:
    folder.write(begun)
    before = folder.source.current(None)
    assert folder.source.current(before) == before
    folder.write(between, later)
    after = folder.source.current(before)
    assert after.metadata_location.endswith(later)
    # A table made anew has another file of the same name.
    (folder.root / "metadata" / later).unlink()
    (folder.root / "metadata" / between).unlink()
    (folder.root / "metadata" / begun).write_text("of another table")
    again = folder.source.current(after)
    assert again.metadata_location == before.metadata_location
    assert again.mark != before.mark
    (folder.root / "metadata" / begun).unlink()
    with pytest.raises(TableFilesMissing):
        folder.source.current(again)


def test_later_looks_follow_a_hint_that_names_a_file(folder: Folder) -> None:
    hint = folder.root / "metadata" / "version-hint.text"
    folder.write(catalogs(5), "b.metadata.json", "a.metadata.json")
    hint.write_text("b")
    before = folder.source.current(None)
    assert before.metadata_location.endswith("b.metadata.json")
    hint.write_text("a.metadata.json")
    after = folder.source.current(before)
    assert after.metadata_location.endswith("a.metadata.json")
    hint.unlink()
    with pytest.raises(Unserveable, match="have no order"):
        folder.source.current(after)


@pytest.mark.parametrize(
    ("begun", "hint", "came", "hint_then", "found"),
    [
        # A file between the two is gone, or was never copied.
        ("v3.metadata.json", "3", "v5.metadata.json", "5", "v5.metadata.json"),
        ("v3.metadata.json", None, "v5.metadata.json", None, "v5.metadata.json"),
        # A hint that comes later, or names a file from then on.
        (catalogs(3), None, "final.metadata.json", "final", "final.metadata.json"),
        ("v3.metadata.json", "3", "v4.metadata.json", "v3", "v3.metadata.json"),
        # What takes over the table, and what has no order.
        ("v3.metadata.json", "3", catalogs(0), "3", None),
        ("v3.metadata.json", None, catalogs(0), None, None),
        ("v3.metadata.json", None, "v4-copy.metadata.json", None, None),
        ("v3.metadata.json", None, "v3.metadata.json.gz", None, None),
    ],
)
def test_later_looks_see_what_first_looks_see(
    folder: Folder, begun: str, hint: str | None, came: str, hint_then: str | None, found: str | None
) -> None:
    file = folder.root / "metadata" / "version-hint.text"
    folder.write(begun)
    if hint is not None:
        file.write_text(hint)
    before = folder.source.current(None)
    assert before.metadata_location.endswith(begun)
    folder.write(came)
    if hint_then is not None:
        file.write_text(hint_then)
    for source, known in (
        (folder.source, before),
        (MetadataFolder(Stores(SETTINGS), str(folder.root)), None),
    ):
        if found is None:
            with pytest.raises(Unserveable, match="its newest state is not known"):
                source.current(known)
        else:
            assert source.current(known).metadata_location.endswith(found)


def test_a_packed_file_is_read_and_one_file_stays_what_it_is(tmp_path: Path) -> None:
    table = OwnedTable(tmp_path / "warehouse")
    fixed = tmp_path / "fixed.metadata.json.gz"
    fixed.write_bytes(gzip.compress(table.newest_file.read_bytes()))
    table.append_days(1)
    settings = ServerSettings(_env_file=None, state_dir=tmp_path / "state")
    found = read_unfollowed(normalise_followed_location(str(fixed), settings), Stores(settings), settings)
    assert found is not None
    assert found.location == str(table.folder)
    assert found.table_id == str(table.table.metadata.table_uuid)
    fixed.unlink()
    with pytest.raises(StoreMissing):
        read_unfollowed(str(fixed), Stores(settings), settings)


def test_a_table_that_was_copied_elsewhere_is_told_from_its_place(tmp_path: Path) -> None:
    table = OwnedTable(tmp_path / "warehouse")
    copied = tmp_path / "copied"
    table.folder.rename(copied)
    with pytest.raises(Unserveable, match=f"{copied} has moved: the table says that it is in {table.folder}"):
        read_unfollowed(str(copied), Stores(SETTINGS), SETTINGS)


def test_a_place_without_any_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unserveable, match=f"no Delta table at {tmp_path}, and no Iceberg table"):
        read_unfollowed(str(tmp_path), Stores(SETTINGS), SETTINGS)


@pytest.mark.parametrize("place", ["iceberg:prod-lake/sales.orders", "nessie:prod-lake/sales.orders"])
def test_a_catalog_that_does_not_answer_is_passing(place: str) -> None:
    with pytest.raises(Unavailable, match="catalog prod-lake cannot be asked"):
        read_unfollowed(place, Stores(SETTINGS), SETTINGS)


@pytest.mark.parametrize("answer", ["<html>", "{}", "[]", ""])
def test_a_response_that_is_none_of_a_catalog_is_passing(
    monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    with answering_store(lambda _: said("200 OK", answer), closes=True) as proxy:
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD_LAKE__URI", proxy.endpoint)
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD_LAKE__TYPE", "rest")
        with pytest.raises(Unavailable, match="catalog prod-lake cannot be asked"):
            read_unfollowed("iceberg:prod-lake/sales.orders", Stores(SETTINGS), SETTINGS)


@pytest.mark.parametrize("token", [None, "same"])
def test_a_nessie_whose_pages_do_not_end_is_asked_no_more(token: str | None) -> None:
    page = json.dumps({"entries": [], "hasMore": True, "token": token})
    with answering_store(lambda _: said("200 OK", page), closes=True) as nessie:
        api = NessieApi(nessie.endpoint, None, lambda *fault: Unavailable(str(fault), ""), timeout_s=5)
        with pytest.raises(Unavailable, match="not one of Nessie"):
            list(api.pages("/trees/main/entries", "entries", {}))
        assert len(nessie.requests) == (1 if token is None else 2)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, Unserveable, "is refused to our token"),
        (403, Unserveable, "is refused to our token"),
        (404, Unserveable, "is not there"),
        (500, Unavailable, "status 500"),
        (200, Unavailable, "cannot be asked"),
    ],
)
def test_an_error_of_nessie_is_reported_without_token_and_password(
    monkeypatch: pytest.MonkeyPatch, status: int, error: type[LakeshareError], words: str
) -> None:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "7")
            self.end_headers()
            self.wfile.write(b"no JSON")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    with listening(server):
        url = f"http://reader:a-secret-password@127.0.0.1:{server.server_port}/api/v2"
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD_LAKE__URI", url)
        monkeypatch.setenv("PYICEBERG_CATALOG__PROD_LAKE__TOKEN", "a-secret-token")
        with pytest.raises(error, match=words) as refused:
            read_unfollowed("nessie:prod-lake/sales.orders", Stores(SETTINGS), SETTINGS)
    assert "a-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            Unserveable("/w/t has moved: it is in s3://b/t.", "See /w/t."),
            "The table has moved: it is in … Provider",
        ),
        (
            Unserveable("Column x of /w/t is odd.", "Drop it from /w/t.", "ODD"),
            "Column x of the table is odd. Drop",
        ),
        (Unserveable("The manifest /w/t/metadata/m.avro is cut.", ""), "The manifest … is cut."),
        (StoreMissing("s3://b/t/x"), "a file of its metadata is gone"),
        (TableFilesMissing("/w/t", "nothing is in /w/t/metadata"), "table files missing: Nothing is in …"),
        (
            Unavailable("the catalog prod cannot be asked", "Look."),
            "the table's store or catalog does not answer",
        ),
        (BadRequest("LOCATION", "iceberg:prod/a.b", "Name it."), "The table's place cannot be looked at."),
    ],
)
def test_recipients_are_told_the_reason_and_no_place(error: LakeshareError, told: str) -> None:
    text = str(hide_locations(error, ("/w/t", "iceberg:prod/a.b")))
    assert told in text
    assert "/" not in text
    assert "prod" not in text
