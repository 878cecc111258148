"""Whoever writes a table's log cannot get at files of the server, or of stores that are not the table's."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.access.allowed_locations import require_own_stores
from lakeshare_server.catalog import SharedTable, share_table
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from tests.builders import plain_http
from tests.builders.lake_tables import a_delta_table, some_rows
from tests.builders.sharing import a_provider, a_server, lines

QUERY = "/shares/lake/schemas/sales/tables/orders/query"


def point_at(table: Path, path: str) -> None:
    """Let the table's only file be another one."""
    log = table / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = path
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


def answer_of(folder: Path, named: Path | str, **settings: Any) -> tuple[httpx.Response, httpx.Response]:
    """What queries of the table and of its changes answer for `folder/orders`, whose log names that file."""
    provider = a_provider(folder, **settings)
    table = a_delta_table(folder / "orders", some_rows(days=1), partitioned_by=())
    point_at(table, str(named))
    provider.follow("sales.orders", table)
    share_table(provider.catalog, "lake", SharedTable("sales", "orders", "sales.orders"))
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        answers = client.post(QUERY), client.post(QUERY, json={"startingVersion": 0})
        for answer in answers:
            answer.extensions["bytes"] = [plain_http.get(url) for url in urls(answer)]
    return answers


def urls(answer: httpx.Response) -> list[str]:
    told = lines(answer) if answer.status_code == 200 else []
    return [line[name]["url"] for line in told for name in ("file", "add") if name in line]


@pytest.mark.parametrize(
    "kept",
    [
        "state/signing.key",
        "state/lakeshare.db",
        "state/first-admin.key",
        "state/audit/kept",
        "catalog.db",
        "catalog.db-wal",
        ".env",
        "link",
        "secrets/env",
        ".pyiceberg.yaml",
        "secrets/catalogs",
        "elsewhere/.pyiceberg.yaml",
    ],
)
def test_files_of_the_server_itself_are_not_there_for_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "env").write_text("LAKESHARE_PAGE_SIZE=7")
    (tmp_path / ".env").symlink_to(tmp_path / "secrets" / "env")
    (tmp_path / "secrets" / "catalogs").write_text("catalog:\n  prod:\n    token: secret\n")
    (tmp_path / ".pyiceberg.yaml").symlink_to(tmp_path / "secrets" / "catalogs")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".pyiceberg.yaml").write_text("catalog:\n")
    (tmp_path / "link").symlink_to(tmp_path / "catalog.db")
    (tmp_path / "state" / "audit").mkdir(parents=True)
    for name in ("lakeshare.db", "first-admin.key", "audit/kept"):
        (tmp_path / "state" / name).write_text("kept")
    for answer in answer_of(tmp_path, tmp_path / kept, database_url=f"sqlite:///{tmp_path / 'catalog.db'}"):
        [got] = answer.extensions["bytes"]
        assert got.status_code == 404


def test_a_table_beside_the_table_lends_its_files(tmp_path: Path) -> None:
    source = a_delta_table(tmp_path / "source", some_rows(days=1), partitioned_by=("day",))
    [file] = source.glob("day=*/*.parquet")
    for answer in answer_of(tmp_path, file):
        [got] = answer.extensions["bytes"]
        assert got.content == file.read_bytes()


def test_files_of_the_disk_that_are_not_beside_the_table_are_refused_by_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "private").write_bytes(b"hush")
    for named in (tmp_path / "day=1" / "private", "../../day=1/private", "x/../../../day=1/private"):
        shutil.rmtree(tmp_path / "lake")
        for answer in answer_of(tmp_path / "lake", named):
            assert answer.status_code == 400
            message, request_id = answer.json()["message"], answer.headers["x-request-id"]
            assert "names files in … on the server's own disk" in message
            assert f"the server's log says more at request id {request_id}." in message
            assert str(tmp_path) not in message
            assert "LAKESHARE_" not in message
            [told] = [text for text in caplog.messages if request_id in text]
            assert f"names files in {tmp_path} on the server's own disk" in told
            assert f"LAKESHARE_FILES_ALSO_IN={tmp_path}" in told
    shutil.rmtree(tmp_path / "lake")
    for answer in answer_of(tmp_path / "lake", tmp_path / "day=1" / "private", files_also_in=str(tmp_path)):
        [got] = answer.extensions["bytes"]
        assert got.content == b"hush"


def settings(**given: Any) -> ServerSettings:
    return ServerSettings(_env_file=None, **given)


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("s3://lake/t", ""),
        ("s3://lake/t", "s3://other"),
        ("/lake/t", "s3://other"),
        ("gs://lake/t", "s3://lake"),
        ("s3://lake/t", "/lake/t"),
        ("/lake/t", "/"),
        ("/lake/t", "/etc"),
        ("/lake/t", "/lake-of-others"),
        ("/lake/t/", "/srv/t"),
        ("file:///lake/x/../t", "/srv"),
        ("//lake/t", "//etc"),
        ("/t", "/u"),
        ("/t", "/"),
    ],
)
def test_stores_that_are_not_the_tables_are_refused_by_name(location: str, root: str) -> None:
    with pytest.raises(Unserveable, match=f"names files in {root or '.* own disk'}"):
        require_own_stores("lake.sales.orders", location, {root}, settings())


def test_the_operator_names_a_container_as_with_the_command() -> None:
    roots = ["abfss://other@acme.dfs.core.windows.net"]
    allowed = settings(files_also_in="az://other", azure_account="acme")
    require_own_stores("orders", "s3://lake/orders", roots, allowed)


def test_the_operator_allows_further_stores_but_never_the_disk_to_a_table_elsewhere() -> None:
    allowing = settings(files_also_in="s3://other gs://more/prefix /srv")
    require_own_stores("t", "s3://lake/t", {"s3://lake", "s3://other", "gs://more"}, allowing)
    require_own_stores("t", "/lake/t", {"", "s3://other"}, allowing)
    require_own_stores("t", "/lake/t", {"", "/srv", "/srv/any", "/lake", "/lake/source"}, allowing)
    for root in ("", "/srv"):
        with pytest.raises(Unserveable, match=r"own disk.*Provider: copy them\.$"):
            require_own_stores("t", "s3://lake/t", {root}, allowing)
    require_own_stores("t", "/t", {"", "/t"}, settings())
