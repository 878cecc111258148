"""Whatever texts a catalog holds, its export is read back as the very same: nothing is turned into YAML's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakeshare_server.catalog import Catalog
from lakeshare_server.catalog.declared import export, read_files
from lakeshare_server.catalog.sharing import alter_share, create_share, editing, is_name
from tests.builders.campaign import campaign_size
from tests.builders.database_schema import open_migrated

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30)
NAMES = TEXT.filter(lambda text: is_name(text) and text.lower() != "s")
TRAPS = (
    "no",
    "null",
    "~",
    "1e3",
    "0o7",
    "2024-01-01",
    "<<",
    "=",
    "- a",
    "a: b",
    "#x",
    "&a",
    "*a",
    "!!int 1",
    "%x",
)
BREAKS = (
    "a\nb\n",
    "a\r\nb",
    "\n",
    " a\n b \n",
    "a\x85b",
    "a\u2028b",
    "\ufeffa",
    "\x1b[31m",
    "tab\t",
    "'\"\\",
    "é\ud7ff",
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    opened = open_migrated(f"sqlite:///{tmp_path_factory.mktemp('round') / 'lakeshare.db'}")
    with editing(opened, "ann") as edit:
        create_share(edit, "s")
    yield opened
    opened.close()


def with_traps(test):
    for text in (*TRAPS, *BREAKS):
        name = text if is_name(text) else "x"
        test = example(comment=text, name=name, value=text)(test)
    return test


@pytest.mark.campaign
@with_traps
@settings(
    max_examples=campaign_size(in_ci=20, in_campaign=1000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(comment=TEXT, name=NAMES, value=TEXT)
def test_what_is_exported_is_read_back(
    catalog: Catalog, tmp_path: Path, comment: str, name: str, value: str
) -> None:
    with editing(catalog, "ann") as edit:
        alter_share(edit, "s", new_name=name, comment=comment, properties={"key": value})
    path = tmp_path / "all.yaml"
    with catalog.reading() as session:
        path.write_bytes(export(session).encode())
    with editing(catalog, "ann") as edit:
        alter_share(edit, name, new_name="s")
    [found] = read_files([path]).values()
    assert (found.fields["name"], found.fields["comment"]) == (name, comment)
    assert found.fields["properties"] == {"key": value}
