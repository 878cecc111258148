"""Publications are read by pipelines and servers alike: by their indexes, or again from the state that they pin."""

import shutil
from pathlib import Path

import pytest

from lakeshare_server.errors import TableFilesMissing
from lakeshare_server.storage import Stores
from lakeshare_server.tables.index import FileIndex, index_path
from lakeshare_server.tables.publications import PublicationFiles
from tests.builders.lake_tables import a_delta_table, some_rows
from tests.builders.sharing import Provider, a_provider


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


def open_files(provider: Provider) -> PublicationFiles:
    return PublicationFiles.open(Stores(provider.settings), provider.settings)


def paths(index: FileIndex) -> list[str]:
    return [path for batch in index.batches() for path in batch.column("path").to_pylist()]


def test_a_lost_index_is_read_again_from_the_pinned_version(provider: Provider, tmp_path: Path) -> None:
    publication = provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"), 0)
    known = paths(open_files(provider).index(publication))
    index_path(provider.settings.index_dir, publication.index_digest).unlink()
    lost = open_files(provider)
    assert lost.find_index(publication.index_digest) is None
    assert paths(lost.index(publication)) == known
    again = open_files(provider).find_index(publication.index_digest)
    assert again is not None
    assert paths(again) == known


def test_another_table_in_its_place_is_refused(provider: Provider, tmp_path: Path) -> None:
    publication = provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"), 0)
    index_path(provider.settings.index_dir, publication.index_digest).unlink()
    shutil.rmtree(tmp_path / "table")
    a_delta_table(tmp_path / "table", some_rows(days=1))
    with pytest.raises(TableFilesMissing, match="another table is in its place now"):
        open_files(provider).index(publication)
