"""Changes of a published table: recipients learn of publications, with their times, and of nothing in between."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lakeshare_server.catalog import Ledger
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables.delta.changes import VersionChanges
from lakeshare_server.versions.published import PublishedVersions, VersionSources
from tests.builders.sharing import Provider, a_provider
from tests.builders.written_log import FEED, WrittenLog, add, metadata, protocol

TABLE = "lake.written"


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return a_provider(tmp_path)


@pytest.fixture
def log(tmp_path: Path) -> WrittenLog:
    """Data, a property, data, an OPTIMIZE, data, data."""
    log = WrittenLog(tmp_path / "written")
    log.commit(protocol(), metadata(), add("0"))
    log.commit(metadata({**FEED, "owner": "somebody"}))
    log.commit(add("2"))
    log.commit(add("3", dataChange=False))
    log.commit(add("4"))
    log.commit(add("5"))
    return log


def changes_of(provider: Provider, first: int, last: int) -> Sequence[VersionChanges]:
    stores = Stores(StoreSettings(_env_file=None))
    sources = VersionSources.open(stores, provider.settings, ledger=Ledger(provider.catalog))
    return PublishedVersions(sources, TABLE).changes(first, last)


def test_what_was_published_is_told_with_the_time_it_was_published(
    provider: Provider, log: WrittenLog
) -> None:
    published = [provider.publish_delta(TABLE, log.location, version) for version in (0, 2, 4)]
    told = changes_of(provider, 0, 4)
    assert [one.version for one in told] == [0, 2, 4]
    assert [one.timestamp_ms for one in told] == [
        int(one.published_at.timestamp() * 1000) for one in published
    ]
    assert told[1].head.configuration["owner"] == "somebody"


def test_data_that_was_never_published_keeps_the_range_from_being_told(
    provider: Provider, log: WrittenLog
) -> None:
    for version in (0, 2, 5):
        provider.publish_delta(TABLE, log.location, version)
    with pytest.raises(Unserveable, match="Version 4 of this table was never published"):
        changes_of(provider, 2, 5)
    assert [one.version for one in changes_of(provider, 0, 2)] == [0, 2]
