"""A recipient with the provider's public key accepts what was published, and nothing else that a server may send."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakeshare_server.catalog import Publication
from lakeshare_server.cli.verify import Verification, VerificationResult, open_client
from lakeshare_server.errors import EvidenceRefused
from lakeshare_server.storage import Stores
from lakeshare_server.tables.envelope import PublicKey, SigningKey, load_signing_key, write_signing_key
from lakeshare_server.tables.evidence import EvidenceWriter
from lakeshare_server.tables.publications import PublicationFiles
from tests.builders.grants import grant_to
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.sharing import Provider, Running, a_provider, a_server

NAMES = ("flights", "lake", "flights")
ICEBERG = ("flights", "lake", "iceberg")
Lines = list[dict[str, Any]]


@dataclass
class SharedLake:
    """A Delta table with two numbers and an Iceberg table, signed, and two recipients: of all rows, and of one day."""

    provider: Provider
    running: Running
    folder: Path
    profile: Path
    restricted: Path
    key: Path
    numbers: tuple[int, int]

    @property
    def trusted(self) -> list[PublicKey]:
        return [load_signing_key(self.provider.settings).public]

    def verify(
        self, lie: "Lie | None" = None, names: tuple[str, str, str] = NAMES, **options: Any
    ) -> VerificationResult:
        profile = options.pop("profile", self.profile)
        asked = Verification(
            names,
            options.pop("version", None),
            options.pop("published_as", ".".join(names[1:])),
            options.pop("keys", self.trusted),
            options.pop("restricted", False),
        )
        with open_client(profile) as client:
            if lie is not None:
                client.client._transport = lie
            given = {"evidence": None, "save": None, "downloads": True, **options}
            return asked.verify_table(client, **given)


@dataclass
class Lie(httpx.BaseTransport):
    """A server, or a machine before it, that changes requests or responses."""

    lines: Callable[[str, Lines], Lines] = lambda _, lines: lines
    request: Callable[[httpx.Request], httpx.Request] = lambda request: request
    headers: dict[str, str] = field(default_factory=dict)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        kind = request.url.path.rsplit("/", 1)[-1]
        with httpx.HTTPTransport() as transport:
            response = transport.handle_request(self.request(request))
            content = response.read()
        changed = self.lines(kind, [json.loads(line) for line in content.splitlines()])
        headers = {**response.headers, **self.headers}
        headers.pop("content-length", None)
        headers.pop("transfer-encoding", None)
        body = "".join(json.dumps(line) + "\n" for line in changed).encode()
        return httpx.Response(response.status_code, headers=headers, content=body)


def sign(provider: Provider, publication: Publication) -> None:
    files = PublicationFiles.open(Stores(provider.settings), provider.settings)
    EvidenceWriter.open(files, provider.catalog).sign_again(publication)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLake]:
    folder = tmp_path_factory.mktemp("evidence")
    provider = a_provider(folder)
    table = a_delta_table(folder / "table")
    first = provider.publish_delta("lake.flights", table)
    sign(provider, first)
    append_delta(table, some_rows(days=1))
    second = provider.publish_delta("lake.flights", table)
    sign(provider, second)
    sign(provider, provider.publish_iceberg("lake.iceberg", an_iceberg_table(folder / "iceberg").state()))
    provider.publish_delta("lake.unsigned", a_delta_table(folder / "unsigned"))
    provider.follow("lake.followed", a_delta_table(folder / "followed"))
    names = ("flights", "iceberg", "unsigned", "followed")
    provider.share(*(f"lake.{name}" for name in names), history=True)
    token = provider.recipient("all")
    part = provider.recipient("part")
    grant_to(provider, "part", rule="day = DATE '2013-01-01'")
    key = folder / "provider.pem"
    key.write_text(load_signing_key(provider.settings).public.pem)
    with a_server(provider) as running:
        profiles = running.profile(token), running.profile(part)
        yield SharedLake(provider, running, folder, *profiles, key, (first.version, second.version))


def test_true_downloads_are_accepted(lake: SharedLake) -> None:
    for names in (NAMES, ICEBERG):
        result = lake.verify(names=names)
        assert result.is_full
        assert result.files == result.digests == result.downloaded > 1
    assert lake.verify(version=lake.numbers[0]).number == lake.numbers[0]
    listed = lake.verify(downloads=False)
    assert not listed.is_full
    assert "not downloaded" in " ".join(listed.lines())


def test_a_changed_byte_is_refused(lake: SharedLake) -> None:
    changed = next((lake.folder / "table").rglob("*.parquet"))
    content = changed.read_bytes()
    try:
        changed.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
        with pytest.raises(EvidenceRefused, match=r"bytes of .* are not those that were signed"):
            lake.verify()
    finally:
        changed.write_bytes(content)


def drop_file(*kinds: str) -> Callable[[str, Lines], Lines]:
    """Leaves the first file out of these responses, and corrects the number at the end of evidence."""

    def drop(kind: str, lines: Lines) -> Lines:
        if kind not in kinds:
            return lines
        key = file_key(next(line for line in lines if "file" in line))
        kept = [line for line in lines if "file" not in line or file_key(line) != key]
        files = sum("file" in line for line in kept)
        return [{"end": {"files": files}} if "end" in line else line for line in kept]

    return drop


def file_key(line: dict[str, Any]) -> str:
    entry = line["file"].get("entry")
    return str(line["file"]["id"] if entry is None else json.loads(entry)["id"])


def test_a_dropped_file_is_refused(lake: SharedLake) -> None:
    with pytest.raises(EvidenceRefused, match="does not hand out 1 of the files"):
        lake.verify(Lie(drop_file("query")))
    with pytest.raises(EvidenceRefused, match=r"not in the evidence|left out"):
        lake.verify(Lie(drop_file("evidence")))
    with pytest.raises(EvidenceRefused, match="lists 3 files, and 4 were published"):
        lake.verify(Lie(drop_file("evidence", "query")))

    def forge_count(kind: str, lines: Lines) -> Lines:
        lines = drop_file("evidence", "query")(kind, lines)
        if kind == "evidence":
            details = lines[0]["evidence"]["details"]
            details["text"] = details["text"].replace('"files":4', '"files":3')
        return lines

    with pytest.raises(EvidenceRefused, match="details in the evidence are not those"):
        lake.verify(Lie(forge_count))

    def claim_restriction(kind: str, lines: Lines) -> Lines:
        lines = drop_file("evidence", "query")(kind, lines)
        if kind == "evidence":
            del lines[0]["evidence"]["details"]
        return lines

    with pytest.raises(EvidenceRefused, match="give --restricted"):
        lake.verify(Lie(claim_restriction))


def test_an_older_number_is_not_accepted_as_a_newer_one(lake: SharedLake) -> None:
    first, second = lake.numbers

    def ask_for_first(request: httpx.Request) -> httpx.Request:
        if request.method == "GET":
            url = request.url.copy_set_param("version", first)
            return httpx.Request("GET", url, headers=request.headers)
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        return httpx.Request("POST", request.url, headers=headers, json={"version": first})

    lie = Lie(request=ask_for_first, headers={"delta-table-version": str(second)})
    with pytest.raises(EvidenceRefused, match=f"of number {first}, not of {second}"):
        lake.verify(lie, version=second)
    with pytest.raises(
        EvidenceRefused, match=f"responds with number {second}, and the evidence is of {first}"
    ):
        lake.verify(lie)


def test_evidence_of_another_table_is_refused(lake: SharedLake) -> None:
    def ask_for_other(request: httpx.Request) -> httpx.Request:
        url = str(request.url).replace("/tables/flights/", "/tables/iceberg/")
        return httpx.Request(request.method, url, headers=request.headers, content=request.read())

    with pytest.raises(EvidenceRefused, match=r"of table lake\.iceberg, not of lake\.flights"):
        lake.verify(Lie(request=ask_for_other))
    assert lake.verify(names=NAMES, published_as="lake.flights").is_full


def test_only_given_keys_are_trusted(lake: SharedLake, tmp_path: Path) -> None:
    write_signing_key(tmp_path / "other.key", if_absent=True)
    settings = lake.provider.settings.model_copy(update={"evidence_key_file": tmp_path / "other.key"})
    other: SigningKey = load_signing_key(settings)
    with pytest.raises(EvidenceRefused, match="No given key has signed"):
        lake.verify(keys=[other.public])
    assert lake.verify(keys=[other.public, *lake.trusted]).is_full
