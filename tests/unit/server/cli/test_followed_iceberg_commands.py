"""The commands about tables know followed Iceberg tables, those in storage and those in a catalog of pyiceberg."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from lakeshare_server.catalog import FollowedTables, Ledger
from lakeshare_server.cli import main
from tests.builders.followed_iceberg import OwnedTable
from tests.builders.lake_tables import some_rows
from tests.builders.sharing import Provider, a_provider


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return provider


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    """A catalog in a database, and its line in pyiceberg's configuration."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  prod:\n    type: sql\n    uri: {uri}\n    secret: a-secret-word\n"
    )
    # Its rows have the catalog's name in them.
    opened = load_catalog("prod", type="sql", uri=uri, warehouse=(tmp_path / "warehouse").as_uri())
    opened.create_namespace("sales")
    opened.create_table("sales.orders", some_rows().schema).append(some_rows(days=1))
    yield opened
    opened.engine.dispose()


class Typed:
    """Commands as a person types them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What the command said, its errors if it failed."""
        self._monkeypatch.setattr("sys.argv", ["lakeshare", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        assert ended.value.code == code, said.err
        return said.err if code else said.out


@pytest.fixture
def type_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(monkeypatch, capsys)


def test_a_table_of_a_catalog_is_followed_shown_and_left(
    provider: Provider, catalog: Any, type_: Typed
) -> None:
    place = "iceberg:prod/sales.orders"
    said = type_(
        "table", "follow", place, "--as", "sales.orders", "--share", "partners", "--check-every", "0"
    )
    assert f"partners.sales.orders follows {place}, now at version 0 (unaudited)" in said
    catalog.load_table("sales.orders").append(some_rows(days=1))
    shown = type_("table", "show", "partners.sales.orders")
    assert "(iceberg, lake table sales.orders)" in shown
    assert "version\t1" in shown
    assert "2 files, 8 rows" in shown
    assert type_("table", "list") == f"sales.orders\t{place}\tevery 0 s\twhole history\ticeberg\n"
    assert "iceberg rest" in type_("table", "serveability", "sales.orders").lower()
    assert type_("publications", "sales.orders").count("unaudited") == 2
    again = type_("table", "follow", place, "--as", "sales.orders", "--share", "partners")
    assert "now at version 1" in again
    assert b"a-secret-word" not in provider.settings.state_dir.joinpath("lakeshare.db").read_bytes()
    type_("table", "unfollow", "sales.orders")
    assert FollowedTables(provider.catalog).list() == []


def test_a_table_in_storage_is_followed_by_its_folder_or_by_one_file(
    provider: Provider, tmp_path: Path, type_: Typed
) -> None:
    table = OwnedTable(tmp_path / "lake")
    first = table.newest_file
    table.append_days(1)
    type_("table", "follow", str(table.folder), "--as", "sales.moving", "--check-every", "0")
    type_("table", "follow", str(first), "--as", "sales.fixed", "--check-every", "0")
    ledger = Ledger(provider.catalog)
    assert [len(ledger.history(name)) for name in ("sales.moving", "sales.fixed")] == [2, 1]
    table.append_days(1)
    assert "version\t2" in type_("table", "show", "lake.sales.moving")
    assert "version\t0" in type_("table", "show", "lake.sales.fixed")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            "iceberg:prod/sales.nothing",
            "iceberg:prod/sales.nothing is not in its catalog. Check the table's name",
        ),
        ("iceberg:prod/nowhere.orders", "is not in its catalog"),
        ("iceberg:prod", "Spell it iceberg:CATALOG/NAMESPACE.TABLE"),
        ("iceberg:other/sales.orders", "No Iceberg catalog of this name is configured; known are: prod."),
        ("nessie:prod/sales.orders", "must be that of Nessie's API, like http://host:19120/api/v2"),
        ("nowhere", "There is no Delta table at"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_remedy(
    provider: Provider, catalog: Any, type_: Typed, place: str, said: str
) -> None:
    assert said in type_("table", "follow", place, "--as", "sales.orders", code=1)
    assert FollowedTables(provider.catalog).list() == []


def test_a_catalog_that_is_configured_wrongly_is_refused_with_the_remedy(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, type_: Typed
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__ODD__URI", "mysql://somebody:a-secret-word@host/lake")
    said = type_("table", "follow", "iceberg:odd/sales.orders", "--as", "sales.orders", code=1)
    assert "pyiceberg cannot use what is configured" in said
    assert "PYICEBERG_CATALOG__ODD__URI" in said
    assert "a-secret-word" not in said


def test_the_help_teaches_every_kind_of_place(type_: Typed) -> None:
    # Boxes break words where lines end.
    said = re.sub(r"[\s│]+", "", type_("table", "follow", "--help"))
    for fragment in (
        "iceberg:CATALOG/NAMESPACE.TABLE",
        "nessie:CATALOG",
        "PYICEBERG_CATALOG__",
        "metadatafile",
    ):
        assert fragment in said
