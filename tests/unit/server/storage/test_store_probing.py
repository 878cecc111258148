"""A store that a writer cannot use is named with the reason and the remedy."""

import re
from datetime import UTC, datetime
from email.utils import formatdate

import pytest

from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.storage.stores import Shortcoming, find_shortcoming, takes_first_write
from tests.builders.answering_store import answering_store, said

LOCATION = "s3://lake/tables"


class Objects:
    """Answers of a store that keeps objects; what is not `honoured` it takes no notice of."""

    def __init__(
        self, *, honours_conditions: bool = True, refuses: str = "", clock_s: float = 0.0, lags: bool = False
    ) -> None:
        self.kept: set[str] = set()
        self.lags = lags
        self.honours_conditions, self.refuses, self.clock_s = honours_conditions, refuses, clock_s

    def answer(self, request: str) -> bytes:
        method, target, _ = request.split(" ", 2)
        key = target.partition("?")[0].removeprefix("/lake/")
        if method == self.refuses:
            return said("403 Forbidden", "<Error><Code>AccessDenied</Code></Error>")
        if method == "PUT":
            if self.honours_conditions and "if-none-match: *" in request.lower() and key in self.kept:
                return said("412 Precondition Failed")
            self.kept.add(key)
            return said("200 OK", "", 'ETag: "one"')
        if method == "POST":  # many objects at once
            gone = re.findall("<Key>(.*?)</Key>", request)
            self.kept -= set(gone)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in gone)
            return said("200 OK", f"<DeleteResult>{deleted}</DeleteResult>")
        if method == "DELETE":
            return said("204 No Content")
        if "list-type=2" in target:
            return said("200 OK", self._listing())
        return said("200 OK", "1", 'ETag: "one"', f"Last-Modified: {formatdate(usegmt=True)}")

    def _listing(self) -> str:
        time = "2020-01-01T00:00:00Z" if self.clock_s else _now()
        entries = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><ETag>one</ETag><LastModified>{time}</LastModified></Contents>"
            for key in sorted(() if self.lags else self.kept)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def shortcoming(objects: Objects) -> Shortcoming | None:
    with answering_store(objects.answer) as store:
        stores = Stores(ServerSettings(_env_file=None, s3_endpoint=store.endpoint, s3_region="eu-west-1"))
        return find_shortcoming(stores, LOCATION)


def test_a_store_that_does_all_is_left_as_it_was() -> None:
    objects = Objects()
    assert shortcoming(objects) is None
    assert objects.kept == set()


def test_a_store_without_conditional_writes_is_refused() -> None:
    found = shortcoming(Objects(honours_conditions=False))
    assert found is not None
    assert found.what == f"the store of {LOCATION} lets a second write replace what must be written once"
    assert "If-None-Match" in found.remedy


@pytest.mark.parametrize(("method", "verb"), [("PUT", "write"), ("GET", "hand out"), ("POST", "delete")])
def test_a_right_that_is_missing_is_named(method: str, verb: str) -> None:
    found = shortcoming(Objects(refuses=method))
    assert found is not None
    assert found.what.startswith(f"The store refuses to {verb} {LOCATION}/.lakeshare-probe-")
    assert "s3:DeleteObject" in found.remedy


def test_a_clock_that_is_off_is_named() -> None:
    found = shortcoming(Objects(clock_s=1.0))
    assert found is not None
    assert re.match(f"the clock of the store of {LOCATION} differs by \\d+ s", found.what)
    assert "NTP" in found.remedy


def test_a_store_whose_listings_lag_is_named() -> None:
    found = shortcoming(Objects(lags=True))
    assert found is not None
    assert found.what == f"the store of {LOCATION} does not list an object that was written just before"


def test_the_local_disk_takes_the_first_of_two_writes(tmp_path) -> None:
    assert takes_first_write(Stores(ServerSettings(_env_file=None)), str(tmp_path))
    assert list(tmp_path.iterdir()) == []
