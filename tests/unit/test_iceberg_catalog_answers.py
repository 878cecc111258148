"""One question at a time goes to an Iceberg catalog, and only a silent one is told to be silent."""

import threading
from queue import SimpleQueue

import pytest

from lakeshare_server.errors import Unavailable
from lakeshare_server.settings import StoreSettings
from lakeshare_server.versions import iceberg_catalog
from lakeshare_server.versions.iceberg_catalog import CatalogTable
from tests.builders.waiting import wait_until

LOCATION = "s3://lake/orders/metadata/1.metadata.json"


@pytest.fixture
def over() -> threading.Event:
    return threading.Event()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> CatalogTable:
    found = CatalogTable("lake", ("sales", "orders"), StoreSettings(_env_file=None))
    monkeypatch.setattr(found, "_metadata_location", lambda: LOCATION)
    return found


def test_a_thread_that_outlives_its_answer_keeps_nobody_from_asking(
    table: CatalogTable, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = iceberg_catalog._answer

    def answer_and_stay(*arguments: object) -> None:
        answer(*arguments)  # type: ignore[arg-type]  # as _answer takes them
        over.wait()

    monkeypatch.setattr(iceberg_catalog, "_answer", answer_and_stay)
    assert [table.current(None).metadata_location for _ in range(3)] == [LOCATION] * 3
    over.set()


def test_a_silent_catalog_is_asked_again_when_it_has_answered(
    table: CatalogTable, over: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: SimpleQueue[threading.Thread] = SimpleQueue()

    def silent() -> str:
        asked.put(threading.current_thread())
        over.wait()
        return LOCATION

    monkeypatch.setattr(table, "_metadata_location", silent)
    monkeypatch.setattr(iceberg_catalog, "ANSWER_S", 0.01)
    with pytest.raises(Unavailable, match="no answer within"):
        table.current(None)
    with pytest.raises(Unavailable, match="has not answered an earlier question"):
        table.current(None)
    asking = asked.get()
    assert asked.empty()
    over.set()
    wait_until(lambda: not asking.is_alive())
    monkeypatch.setattr(iceberg_catalog, "ANSWER_S", 60)
    assert table.current(None).metadata_location == LOCATION
