"""A recipient with the provider's public key accepts what was published, and nothing else that a server may send."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyroaring import BitMap64

from lakeshare_server.catalog import Ledger, Publication, SharedTable
from lakeshare_server.catalog.credentials import issue_token
from lakeshare_server.catalog.sharing import add_table, create_recipient, create_share, editing, grant
from lakeshare_server.cli import verify
from lakeshare_server.cli.console import ServerRefused
from lakeshare_server.cli.verify import Verification, VerificationResult, open_client
from lakeshare_server.errors import BadRequest, EvidenceRefused
from lakeshare_server.storage import Stores
from lakeshare_server.tables import TableSnapshot, read_iceberg
from lakeshare_server.tables.envelope import PublicKey, SigningKey, load_signing_key, write_signing_key
from lakeshare_server.tables.evidence import ContentDigests, EvidenceWriter
from lakeshare_server.tables.iceberg.deletes import (
    INLINE_BYTES,
    add_vector_feature,
    vector_columns,
    vector_of,
)
from lakeshare_server.tables.publications import PublicationFiles
from tests.builders.commands import Runner
from tests.builders.credentials import OAUTH
from tests.builders.grants import grant_to
from tests.builders.http_server import listening
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.sharing import Provider, Running, a_provider, a_server

NAMES = ("flights", "lake", "flights")
ICEBERG = ("flights", "lake", "iceberg")
OAUTH_PROFILE = {"type": "oauth_client_credentials", "clientId": "x", "clientSecret": "x"}
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


def with_deletes(provider: Provider, folder: Path) -> TableSnapshot:
    """An Iceberg table with a deletion vector in the line of a file, and one in a file of its own."""
    state, vectors = an_iceberg_table(folder).state(), provider.settings.vectors_dir
    pins = state.metadata_location, state.snapshot_id
    snapshot = read_iceberg(*pins, vectors, Stores(provider.settings))
    deleted = {0: vector_of(BitMap64([1])), 1: vector_of(BitMap64(range(0, 16 * INLINE_BYTES, 2)))}
    columns = vector_columns(deleted, snapshot.files.num_rows, vectors)
    files = snapshot.files
    for name, values in columns.items():
        files = files.append_column(name, values)
    return replace(snapshot, files=files, head=add_vector_feature(snapshot.head, columns))


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
    sign(provider, provider.publish("lake.deletes", with_deletes(provider, folder / "deletes")))
    provider.publish_delta("lake.unsigned", a_delta_table(folder / "unsigned"))
    provider.follow("lake.followed", a_delta_table(folder / "followed"))
    names = ("flights", "iceberg", "deletes", "unsigned", "followed")
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


def as_part(lake: SharedLake, lie: Lie | None = None, **options: Any) -> VerificationResult:
    return lake.verify(lie, profile=lake.restricted, **{"restricted": True, **options})


def test_a_recipient_with_a_rule_verifies_its_part_and_learns_nothing_of_the_rest(lake: SharedLake) -> None:
    whole, responses = lake.verify(), list[str]()

    def keep(kind: str, lines: Lines) -> Lines:
        responses.extend(json.dumps(line) for line in lines if kind == "evidence")
        return lines

    result = as_part(lake, Lie(keep))
    assert (result.files, whole.files, result.is_complete, result.is_full) == (2, 4, False, False)
    assert "that no file of your part of the table is missing" in " ".join(result.lines())
    assert not result.details
    text = "".join(responses)
    own = {file_key(json.loads(line)) for line in responses if '"file"' in line}
    index = list(published_files(lake))
    assert own < set(index)
    assert not any(file in text for file in index if file not in own)
    for hidden in ("padding", "2013-01-02", '"rows"', '"bytes"', "runId", "deliveries"):
        assert hidden not in text
    with pytest.raises(EvidenceRefused, match="give --restricted"):
        as_part(lake, restricted=False)


def published_paths(lake: SharedLake, table: str) -> Iterator[str]:
    return published_values(lake, table, "path")


def published_files(lake: SharedLake) -> Iterator[str]:
    return published_values(lake, "lake.flights", "delta_id")


def published_values(lake: SharedLake, table: str, column: str) -> Iterator[str]:
    ledger, files = (
        Ledger(lake.provider.catalog),
        PublicationFiles.open(Stores(lake.provider.settings), lake.provider.settings),
    )
    publication = ledger.latest(table)
    assert publication is not None
    for batch in files.index(publication).batches():
        yield from batch.column(column).to_pylist()


def change_entry(name: str, value: Any) -> Callable[[str, Lines], Lines]:
    """Changes a field of the first entry of evidence."""

    def change(kind: str, lines: Lines) -> Lines:
        first = next((line for line in lines if "file" in line), None)
        if first is not None and kind == "evidence":
            entry = json.loads(first["file"]["entry"])
            first["file"]["entry"] = json.dumps({**entry, name: value}, sort_keys=True, separators=(",", ":"))
        return lines

    return change


def test_a_forged_entry_is_in_no_signed_list(lake: SharedLake) -> None:
    for name, value in (("sha256", "0" * 64), ("size", 1), ("partitionValues", {"day": "2014-01-01"})):
        lie = Lie(change_entry(name, value))
        with pytest.raises(EvidenceRefused, match="is not in the list of files that was signed"):
            as_part(lake, lie)
        with pytest.raises(EvidenceRefused, match="is not the one that was signed"):
            lake.verify(lie)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "partition": (lambda file: file["partitionValues"].update(day="2014-01-01"), "another size, partition"),
    "statistics": (lambda file: file.update(stats='{"numRecords":0}'), "another size, partition"),
    "no statistics": (lambda file: file.pop("stats"), "another size, partition"),
    "deletes": (
        lambda file: file.update(deletionVector={"storageType": "i", "pathOrInlineDv": "x"}),
        "another size, partition",
    ),
    "id": (lambda file: file.update(id="0" * 64), "not in the evidence"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_line_of_a_file_is_refused(lake: SharedLake, change: str) -> None:
    alter, refusal = CHANGES[change]

    def lie(kind: str, lines: Lines) -> Lines:
        if kind == "query":
            alter(next(line["file"] for line in lines if "file" in line))
        return lines

    with pytest.raises(EvidenceRefused, match=refusal):
        lake.verify(Lie(lie))


def test_deletes_are_compared_in_lines_and_in_files(lake: SharedLake) -> None:
    names = ("flights", "lake", "deletes")
    assert lake.verify(names=names).is_full

    def change_vector(kind: str, lines: Lines) -> Lines:
        for line in lines if kind == "query" else []:
            vector = (
                line.get("file", {}).get("deltaSingleAction", {}).get("add", {}).get("deletionVector", {})
            )
            if vector.get("storageType") == "i":
                vector["pathOrInlineDv"] = vector["pathOrInlineDv"][::-1]
        return lines

    with pytest.raises(EvidenceRefused, match="another size, partition, statistics or deletes"):
        lake.verify(Lie(change_vector), names=names)
    [vector] = lake.provider.settings.vectors_dir.glob("*.bin")
    content = vector.read_bytes()
    try:
        vector.write_bytes(content[:-1] + b"x")
        with pytest.raises(EvidenceRefused, match=r"deletes in .* are not those that were signed"):
            lake.verify(names=names)
    finally:
        vector.write_bytes(content)


def test_the_field_that_clients_read_is_the_one_that_is_verified(lake: SharedLake) -> None:
    def swap_paths(kind: str, lines: Lines) -> Lines:
        adds = [
            line["file"]["deltaSingleAction"]["add"] for line in lines if kind == "query" and "file" in line
        ]
        for add, other in zip(adds, [each["path"] for each in reversed(adds)], strict=True):
            add["url"], add["path"] = add["path"], other
        return lines

    with pytest.raises(EvidenceRefused, match=r"bytes of .* are not those that were signed"):
        lake.verify(Lie(swap_paths), names=("flights", "lake", "deletes"))


@pytest.mark.parametrize("field", ["id", "schemaString", "partitionColumns"])
def test_a_changed_head_is_refused(lake: SharedLake, field: str) -> None:
    def lie(kind: str, lines: Lines) -> Lines:
        if kind == "query":
            lines[1]["metaData"][field] = (
                [] if field == "partitionColumns" else lines[1]["metaData"][field] + " "
            )
        return lines

    with pytest.raises(EvidenceRefused, match="of the response is not what was signed"):
        lake.verify(Lie(lie))


def test_lines_of_other_kinds_and_a_missing_head_are_refused(lake: SharedLake) -> None:
    def without_head(kind: str, lines: Lines) -> Lines:
        return [line for line in lines if kind != "query" or "metaData" not in line]

    def with_another(kind: str, lines: Lines) -> Lines:
        return [*lines[:2], {"add": lines[2]["file"]}, *lines[2:]] if kind == "query" else lines

    with pytest.raises(EvidenceRefused, match="cut off"):
        lake.verify(Lie(without_head))
    with pytest.raises(EvidenceRefused, match="kind 'add'"):
        lake.verify(Lie(with_another))


# Fields of the evidence's first line and of its files that are of another form.
OTHER_FORMS: dict[str, dict[str, dict[str, Any]]] = {
    "text of details": {"evidence": {"details": {"salt": "00", "text": []}}},
    "payload": {"evidence": {"envelope": {"payload": "\ud800", "payloadType": "x", "signatures": []}}},
    "place": {"file": {"place": float("inf")}},
    "entry of lists": {"file": {"entry": "[" * 100_000}},
    "id": {"file": {"entry": '{"id": [], "size": 1}'}},
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_evidence_of_another_form_is_refused(lake: SharedLake, form: str) -> None:
    [(name, fields)] = OTHER_FORMS[form].items()

    def lie(kind: str, lines: Lines) -> Lines:
        for line in lines if kind == "evidence" else []:
            line.get(name, {}).update(fields)
        return lines

    with pytest.raises(EvidenceRefused):
        lake.verify(Lie(lie))


@pytest.mark.parametrize("content", ["x", 1, [1]])
def test_a_response_of_another_form_is_refused(lake: SharedLake, content: object) -> None:
    for name, key in (("file", "deltaSingleAction"), ("metaData", "deltaMetadata")):

        def lie(kind: str, lines: Lines, name: str = name, key: str = key) -> Lines:
            for line in lines if kind == "query" else []:
                if name in line:
                    line[name][key] = content if key == "deltaSingleAction" else {"configuration": content}
            return lines

        with pytest.raises(EvidenceRefused):
            lake.verify(Lie(lie), names=("flights", "lake", "deletes"))


def cut_last_line(kind: str) -> Callable[[str, Lines], Lines]:
    return lambda found, lines: lines[:-1] if found == kind else lines


def repeat_file(kind: str) -> Callable[[str, Lines], Lines]:
    return lambda found, lines: [*lines[:-1], lines[-2], lines[-1]] if found == kind else lines


def test_responses_that_are_cut_off_or_repeat_a_file_are_refused(lake: SharedLake) -> None:
    for kind in ("query", "evidence"):
        with pytest.raises(EvidenceRefused, match="cut off"):
            lake.verify(Lie(cut_last_line(kind)))
        with pytest.raises(EvidenceRefused, match="twice"):
            lake.verify(Lie(repeat_file(kind)))


def test_tables_without_evidence_are_refused_with_the_reason(lake: SharedLake) -> None:
    reasons = {"followed": "no audit has seen it", "unsigned": "published without a statement"}
    for name, reason in reasons.items():
        with lake.running.client(lake_token(lake)) as client:
            response = client.get(f"/shares/flights/schemas/lake/tables/{name}/evidence")
        assert response.status_code == 404
        assert response.json()["errorCode"] == "RESOURCE_DOES_NOT_EXIST"
        assert reason in response.json()["message"]
        assert "Ask your provider" in response.json()["message"]
        with pytest.raises(ServerRefused, match=reason):
            lake.verify(names=("flights", "lake", name))


def lake_token(lake: SharedLake) -> str:
    return str(json.loads(lake.profile.read_text())["bearerToken"])


def test_keys_are_listed_for_recipients_only(lake: SharedLake) -> None:
    with lake.running.client(lake_token(lake)) as client, lake.running.client(None) as stranger:
        [key] = client.get("/evidence-keys").json()["keys"]
        assert stranger.get("/evidence-keys").status_code == 401
    assert key["publicKey"] == lake.key.read_text()
    assert key["keyId"] == lake.trusted[0].key_id
    assert key["retiredAt"] is None


def test_each_file_is_read_once_for_a_digest(lake: SharedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    read, digest = list[str](), ContentDigests._read
    monkeypatch.setattr(ContentDigests, "_read", lambda *given: (read.append(given[1]), digest(*given))[1])
    publication = Ledger(lake.provider.catalog).latest("lake.iceberg")
    assert publication is not None
    for mode, times in (("local", 0), ("none", 0), ("local", 1), ("local", 0), ("read", 0)):
        read.clear()
        settings = lake.provider.settings.model_copy(update={"evidence_digests": mode})
        sign(replace(lake.provider, settings=settings), publication)
        assert len(read) == times * publication.files, mode
    [lost, *_] = paths = [Path(path) for path in published_paths(lake, "lake.iceberg")]
    lost.rename(lost.with_suffix(".moved"))
    for mode, times in (("none", 0), ("local", 1), ("local", 0), ("read", 1)):
        read.clear()
        settings = lake.provider.settings.model_copy(update={"evidence_digests": mode})
        sign(replace(lake.provider, settings=settings), publication)
        assert len(read) == (times * len(paths) if mode == "local" else times), mode
    lost.with_suffix(".moved").rename(lost)
    assert lake.verify(names=ICEBERG).sizes == 1


def test_the_command_verifies_online_and_offline(
    lake: SharedLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, table = Runner(monkeypatch, capsys), f"{lake.profile}#flights.lake.flights"
    saved, downloads = tmp_path / "saved.jsonl", tmp_path / "downloads"
    options = ("--key", str(lake.key))
    said = run("verify", table, *options, "--files", "--save", str(saved))
    assert "fully verified" in said
    assert lake.trusted[0].key_id in said
    report = json.loads(run("verify", table, *options, "--json"))
    assert (report["accepted"], report["fully_verified"], report["is_complete"]) == (True, False, True)
    downloads.mkdir()
    for number, file in enumerate(sorted((lake.folder / "table").rglob("*.parquet"))):
        shutil.copyfile(file, downloads / str(number))
    offline = (
        "verify",
        "flights.lake.flights",
        *options,
        "--evidence",
        str(saved),
        "--folder",
        str(downloads),
    )
    assert "4 of 4 files have the signed SHA-256" in run(*offline)
    (downloads / "0").write_bytes((downloads / "0").read_bytes() + b"x")
    changed = run.ended(*offline)
    assert (changed.code, "none of the files that were signed" in changed.errors) == (1, True)
    (downloads / "0").unlink()
    refused = run.ended(*offline, "--json")
    assert refused.code == 1
    assert "1 of the files that were signed are not in" in json.loads(refused.output)["refusal"]
    assert "evidence is of number 1, not of 0" in run.ended(*offline, "--version", "0").errors
    assert (
        "of number 1, which is older than 2" in run.ended("verify", table, *options, "--at-least", "2").errors
    )
    for wrong in (
        ("--folder", str(downloads)),
        ("--key", str(tmp_path / "none")),
        ("--evidence", str(tmp_path / "none")),
        ("--evidence", str(saved), "--folder", str(tmp_path / "none")),
        ("--save", str(tmp_path / "none" / "saved.jsonl")),
    ):
        ended = run.ended("verify", table, *options, *wrong)
        assert (ended.code, f"{wrong[-2]}: " in ended.errors) == (1, True)
    content = saved.read_bytes()
    assert "Leave it out" in run.ended(*offline, "--save", str(saved)).errors
    assert saved.read_bytes() == content


def test_files_without_a_signed_digest_are_compared_by_their_size(
    lake: SharedLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = lake.provider.settings.model_copy(update={"evidence_digests": "none"})
    publication = lake.provider.publish_delta("lake.unread", a_delta_table(tmp_path / "unread"))
    sign(replace(lake.provider, settings=settings), publication)
    with editing(lake.provider.catalog, "tests") as edit:
        create_share(edit, "unread")
        add_table(edit, "unread", SharedTable("lake", "unread", "lake.unread"))
        grant(edit, "unread", recipient="all")
    run, table, saved = Runner(monkeypatch, capsys), f"{lake.profile}#unread.lake.unread", tmp_path / "saved"
    run("verify", table, "--key", str(lake.key), "--save", str(saved))
    monkeypatch.setattr(verify, "QUIET_S", 0.0)
    offline = ("verify", "unread.lake.unread", "--key", str(lake.key), "--evidence", str(saved), "--folder")
    files = tmp_path / "files"
    files.mkdir()
    for number, file in enumerate(sorted((tmp_path / "unread").rglob("*.parquet"))):
        shutil.copyfile(file, files / str(number))
    ended = run.ended(*offline, str(files))
    assert (ended.code, "compared 1 of 3 files (33%)" in ended.errors) == (0, True)
    assert "the content of 3 files: only their sizes are signed and were compared" in ended.output
    (files / "0").write_bytes(b"x")
    assert "none of the files that were signed" in run.ended(*offline, str(files)).errors


class WithoutToken(BaseHTTPRequestHandler):
    """An endpoint that answers JSON of another kind."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"endpoint": "http://[::1"}, "cannot be read: Invalid port"),
        ({"endpoint": f"https://{'a' * 70}.example"}, "label empty or too long"),
        ({"endpoint": "http://127.0.0.1:1"}, "Connection refused"),
        ({**OAUTH_PROFILE, "tokenEndpoint": "http://[::1"}, "issues no token: Invalid port"),
        ({**OAUTH_PROFILE, "tokenEndpoint": "http://127.0.0.1:1"}, "issues no token: "),
        (OAUTH_PROFILE, "the token endpoint has no token"),
    ],
)
def test_endpoints_of_a_profile_that_do_not_answer_as_such_are_named(
    lake: SharedLake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fields: dict[str, str],
    reason: str,
) -> None:
    path = tmp_path / "wrong.share"
    with ThreadingHTTPServer(("127.0.0.1", 0), WithoutToken) as server, listening(server):
        url = f"http://127.0.0.1:{server.server_port}"
        path.write_text(json.dumps({"bearerToken": "x", "endpoint": url, "tokenEndpoint": url, **fields}))
        table = f"{path}#flights.lake.flights"
        ended = Runner(monkeypatch, capsys).ended("verify", table, "--key", str(lake.key))
    assert (ended.code, reason in ended.errors) == (1, True), ended.errors


def test_profiles_with_a_client_secret_verify_too(lake: SharedLake, tmp_path: Path) -> None:
    with editing(lake.provider.catalog, "tests") as edit:
        state = create_recipient(edit, "service", authentication=OAUTH)
        grant(edit, "flights", recipient="service")
        issued = issue_token(edit, "service")
    url = lake.running.url
    profile = {
        "shareCredentialsVersion": 2,
        "type": "oauth_client_credentials",
        "endpoint": url,
        "tokenEndpoint": f"{url}/oauth/token",
        "clientId": state.id,
        "clientSecret": issued.secret,
    }
    path = tmp_path / "service.share"
    path.write_text(json.dumps(profile))
    assert lake.verify(profile=path).is_full
    path.write_text(json.dumps({**profile, "clientSecret": "wrong"}))
    with pytest.raises(ServerRefused, match="401"):
        lake.verify(profile=path)
    for wrong in ({**profile, "type": "magic"}, {"endpoint": url}, {"bearerToken": "x"}, []):
        path.write_text(json.dumps(wrong))
        with pytest.raises(BadRequest, match="PROFILE"):
            lake.verify(profile=path)
