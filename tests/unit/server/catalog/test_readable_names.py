"""Names are such that clients can read what has them, wherever they come in; names that the catalog holds stay."""

from collections.abc import Callable
from pathlib import Path

import delta_sharing
import pytest
from sqlalchemy import update

from lakeshare_server.catalog import (
    Catalog,
    DeclaredShare,
    FollowedTables,
    SharedTable,
    apply_shares,
    share_table,
)
from lakeshare_server.catalog.models import (
    FollowedTableRow,
    RecipientRow,
    SchemaRow,
    SharedTableRow,
    ShareRow,
)
from lakeshare_server.catalog.sharing import (
    alter_recipient,
    alter_share,
    alter_table,
    create_group,
    create_recipient,
    create_share,
    editing,
    is_name,
)
from lakeshare_server.errors import BadRequest
from tests.builders.administration import PROVIDER, an_administered_server
from tests.builders.commands import Runner, a_state_folder
from tests.builders.hostile.served import quietly
from tests.builders.iceberg_rest import rest_catalog
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, some_rows
from tests.builders.sharing import a_provider, a_server

UNREADABLE = (
    "a#b",
    "a?b",
    "a%2Fb",
    "a%b",
    "a/b",
    "a.b",
    ".a",
    "a.",
    " a",
    "a ",
    "a\tb",
    "a\x85b",
    "a\u00a0b",
    "a\u2028b",
)
READABLE = [f"a{one}b" for one in map(chr, range(33, 127)) if not one.isalnum() and one not in "#?%/."]
READABLE += ["é", "漢", "\U0001f600", "a\u200cb", "-a", "~"]


def test_clients_read_every_name_that_is_accepted(tmp_path: Path) -> None:
    provider = a_provider(tmp_path)
    provider.publish_delta("lake.t", a_delta_table(tmp_path / "t", some_rows(days=1), partitioned_by=()))
    provider.publish_iceberg("lake.i", an_iceberg_table(tmp_path / "i").state())
    tables = [SharedTable(schema, name, f"lake.{schema}") for schema in "ti" for name in READABLE]
    apply_shares(provider.catalog, [DeclaredShare("a'+&b", tuple(tables))])
    token = provider.recipient(shares=("a'+&b",))
    with a_server(provider) as server:
        profile, catalog = server.profile(token), rest_catalog(server, token, share="a'+&b")
        for name in READABLE:
            frame = quietly(delta_sharing.load_as_pandas, f"{profile}#a'+&b.t.{name}", limit=1)
            assert len(frame) == 1, name
            assert catalog.load_table(("i", name)).name()[-1] == name


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return a_provider(tmp_path_factory.mktemp("names")).catalog


@pytest.mark.parametrize("name", UNREADABLE)
def test_no_operation_of_the_catalog_makes_a_name_that_clients_cannot_read(
    catalog: Catalog, name: str
) -> None:
    making: list[Callable[[], object]] = [
        lambda: FollowedTables(catalog).add(f"sales.{name}", "/t", 1.0),
        lambda: FollowedTables(catalog).add(f"{name}.orders", "/t", 1.0),
        lambda: share_table(catalog, name, SharedTable("sales", "orders", "sales.orders")),
        lambda: share_table(catalog, "s", SharedTable(name, "orders", "sales.orders")),
        lambda: share_table(catalog, "s", SharedTable("sales", name, "sales.orders")),
        lambda: apply_shares(catalog, [DeclaredShare(name, ())]),
        lambda: apply_shares(catalog, [DeclaredShare("s", (SharedTable("sales", name, "sales.orders"),))]),
    ]
    for make in making:
        with pytest.raises(BadRequest, match="Names have 1 to 255 characters"):
            make()
    with editing(catalog, "test") as edit:
        for create in (create_share, create_recipient, create_group):
            with pytest.raises(BadRequest, match="Names have 1 to 255 characters"):
                create(edit, name)


def test_files_statements_and_commands_refuse_it_with_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a%2Fb"
    a_state_folder(tmp_path, monkeypatch)
    run = Runner(monkeypatch, capsys)
    table = a_delta_table(tmp_path / "plain")
    (tmp_path / "shares.yaml").write_text(f'shares: {{partners: {{tables: ["sales.{name}"]}}}}\n')
    (tmp_path / "recipients.yaml").write_text(f'recipients: {{"{name}": }}\n')
    for arguments in (
        ["table", "follow", str(table), "--as", f"sales.{name}"],
        ["table", "follow", str(table), "--as", "sales.orders", "--share", name],
        ["recipient", "add", name, "--share", "lake"],
        ["apply", "-f", "shares.yaml", "--plan"],
        ["apply", "-f", "recipients.yaml", "--plan"],
        ["sql", "-c", f"CREATE SHARE `{name}`"],
        ["sql", "-c", f"CREATE RECIPIENT `{name}`"],
    ):
        ended = run.ended(*arguments)
        assert ended.code != 0, arguments
        assert "Names have 1 to 255 characters" in ended.errors + ended.output, arguments
    assert run("table", "list") == ""


def test_the_admin_api_refuses_it_with_the_rule(tmp_path: Path) -> None:
    with an_administered_server(tmp_path) as server, server.client(prefix=PROVIDER) as client:
        for kind in ("shares", "recipients", "groups"):
            answer = client.post(f"/{kind}", json={"name": "a#b"})
            assert answer.status_code == 400
            assert "Names have 1 to 255 characters" in answer.json()["message"]


def test_names_that_the_catalog_holds_keep_working(tmp_path: Path) -> None:
    """They come from earlier versions: read by clients that escape them, edited, applied and followed as before."""
    provider = a_provider(tmp_path)
    catalog, table = provider.catalog, a_delta_table(tmp_path / "t", some_rows(days=1), partitioned_by=())
    provider.follow("sales.orders", table)
    share_table(catalog, "s", SharedTable("sales", "orders", "sales.orders"))
    token = provider.recipient(name="bob", shares=("s",))
    hold_odd_names(catalog)
    FollowedTables(catalog).add("sales.a#b", str(table), 5.0)
    with editing(catalog, "test") as edit:
        alter_share(edit, "s#", new_name="s#", comment="an old name")
        alter_recipient(edit, "b?b", new_name="b?b", comment="an old name")
        alter_table(edit, "s#", "sch%41", "a#b", new_name="a#b", comment="an old name")
    share_table(catalog, "s#", SharedTable("sch%41", "a#b", "sales.a#b"))
    with a_server(provider) as server, server.client(token) as client:
        assert client.post("/shares/s%23/schemas/sch%2541/tables/a%23b/query").status_code == 200


def hold_odd_names(catalog: Catalog) -> None:
    with catalog.writing() as session:
        for row, name in (
            (ShareRow, "s#"),
            (RecipientRow, "b?b"),
            (SchemaRow, "sch%41"),
            (SharedTableRow, "a#b"),
        ):
            session.execute(update(row).values(name=name, name_key=name))
        session.execute(update(SharedTableRow).values(lake_table="sales.a#b"))
        session.execute(update(FollowedTableRow).values(table_name="sales.a#b"))


def test_what_is_held_under_an_odd_name_is_declared_again_without_a_change(tmp_path: Path) -> None:
    catalog = a_provider(tmp_path).catalog
    apply_shares(catalog, [DeclaredShare("s", (SharedTable("sales", "orders", "sales.orders"),))])
    with catalog.writing() as session:
        session.execute(update(SharedTableRow).values(name="a#b", name_key="a#b"))
    diff = apply_shares(catalog, [DeclaredShare("s", (SharedTable("sales", "a#b", "sales.orders"),))])
    assert (diff.added, diff.removed, diff.changed) == ((), (), ())


def test_the_rule_is_told_by_the_names_that_clients_failed_on() -> None:
    assert not any(map(is_name, UNREADABLE))
    assert all(map(is_name, READABLE))
