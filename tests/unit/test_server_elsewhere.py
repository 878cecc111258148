"""Whoever writes a table's log cannot get at files of the server, or of stores that are not the table's."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.access.elsewhere import require_own_stores
from lakeshare_server.catalog import SharedTable
from lakeshare_server.catalog.hand_shares import share_table
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from tests.builders.lake_tables import a_delta_table, some_rows
from tests.builders.sharing import a_provider, a_server, files

QUERY = "/shares/lake/schemas/sales/tables/orders/query"


def point_at(table: Path, path: str) -> None:
    """Let the table's only file be another one."""
    log = table / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = path
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("kept", ["signing.key", "lakeshare.db", "link"])
def test_files_of_the_server_itself_are_not_there_for_anybody(tmp_path: Path, kept: str) -> None:
    provider = a_provider(tmp_path)
    state = provider.settings.state_dir
    table = a_delta_table(tmp_path / "orders", some_rows(days=1), partitioned_by=())
    (tmp_path / "link").symlink_to(state / "lakeshare.db")
    point_at(table, str(tmp_path / "link" if kept == "link" else state / kept))
    provider.follow("sales.orders", table)
    share_table(provider.catalog, "lake", SharedTable("sales", "orders", "sales.orders"))
    token = provider.recipient(shares=("lake",))
    with a_server(provider) as server, server.client(token) as client:
        assert (state / "signing.key").exists()
        [file] = files(client.post(QUERY))
        assert httpx.get(file["url"]).status_code == 404


def settings(**given: Any) -> ServerSettings:
    return ServerSettings(_env_file=None, **given)


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("s3://lake/t", ""),
        ("s3://lake/t", "s3://other"),
        ("/lake/t", "s3://other"),
        ("gs://lake/t", "s3://lake"),
    ],
)
def test_stores_that_are_not_the_tables_are_refused_by_name(location: str, root: str) -> None:
    with pytest.raises(Unserveable, match=root or "own disk"):
        require_own_stores("lake.sales.orders", location, {root}, settings())


def test_the_operator_allows_further_stores_but_never_the_disk_to_a_table_elsewhere() -> None:
    allowing = settings(files_also_in="s3://other gs://more/prefix /srv")
    require_own_stores("t", "s3://lake/t", {"s3://lake", "s3://other", "gs://more"}, allowing)
    require_own_stores("t", "/lake/t", {"", "s3://other"}, allowing)
    with pytest.raises(Unserveable, match="own disk"):
        require_own_stores("t", "s3://lake/t", {""}, allowing)
