"""Every text of a share and of a recipient, and its limits, are set, printed, emptied and checked on every surface."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import select

from lakeshare_server.catalog import Catalog, states
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.text_fields import TEXT_FIELDS, TextField, TextOwner
from tests.builders import plain_http
from tests.builders.administration import PROVIDER, Administered, an_administered_server
from tests.builders.commands import Runner

FIELDS = [(owner, text) for owner, texts in TEXT_FIELDS.items() for text in texts]
GET = {"share": states.get_share, "recipient": states.get_recipient}
each_field = pytest.mark.parametrize(("owner", "text"), FIELDS, ids=[text.name for _, text in FIELDS])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with an_administered_server(tmp_path_factory.mktemp("texts")) as running:
        yield running


@pytest.fixture
def run(
    server: Administered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Runner:
    """Commands on the catalog of the server."""
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(server.provider.settings.state_dir))
    monkeypatch.setenv("LAKESHARE_DATABASE_URL", server.provider.settings.catalog_url)
    monkeypatch.chdir(tmp_path)
    return Runner(monkeypatch, capsys)


def stored(catalog: Catalog, owner: TextOwner, name: str, text: TextField) -> Any:
    with catalog.reading() as session:
        return getattr(GET[owner](session, name), text.name)


@each_field
def test_a_text_is_set_printed_and_emptied_on_every_surface(
    server: Administered, run: Runner, tmp_path: Path, owner: TextOwner, text: TextField
) -> None:
    name, keywords, catalog = f"texts_{text.name}", " ".join(text.keywords), server.provider.catalog
    option = f"--{text.name.replace('_', '-')}"
    (tmp_path / "text.txt").write_text(text.example)
    as_option = "text.txt" if text.from_file else text.example

    def expect(value: str | None) -> None:
        assert stored(catalog, owner, name, text) == value

    # SQL
    run("sql", "-c", f"CREATE {owner} {name} {keywords} '{text.example}'")
    expect(text.example)
    run("sql", "-c", f"ALTER {owner} {name} UNSET {keywords}")
    expect(None)
    run("sql", "-c", f"ALTER {owner} {name} SET {keywords} '{text.example}'")
    expect(text.example)
    if not text.from_file:
        assert text.example in run("sql", "-c", f"DESCRIBE {owner} {name}")
    # Files
    exported = yaml.safe_load(run("export"))[f"{owner}s"][name]
    assert exported[text.name] == text.example
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump({f"{owner}s": {name: None}}))
    run("apply", "-f", "lake.yaml", "--yes")
    expect(None)
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump({f"{owner}s": {name: {text.name: text.example}}}))
    run("apply", "-f", "lake.yaml", "--yes")
    expect(text.example)
    # The API
    with server.client(prefix=PROVIDER) as client:
        assert client.get(f"/{owner}s/{name}").json()[text.name] == text.example
        assert text.name not in client.patch(f"/{owner}s/{name}", json={text.name: None}).json()
        expect(None)
        assert (
            client.patch(f"/{owner}s/{name}", json={text.name: text.example}).json()[text.name]
            == text.example
        )
        refused = client.patch(f"/{owner}s/{name}", json={text.name: " "})
        assert (refused.status_code, text.name in refused.json()["message"]) == (400, True)
        made = client.post(f"/{owner}s", json={"name": f"{name}_2", text.name: text.example})
        assert made.json()[text.name] == text.example
    # Commands
    run(owner, "set", name, option, "" if not text.from_file else str(empty_file(tmp_path)))
    expect(None)
    run(owner, "set", name, option, as_option)
    expect(text.example)
    assert f"{text.name}\t{text.example}" in run(owner, "show", name)
    added = f"{name}_3"
    create = ["create", added] if owner == "share" else ["add", added, "--share", a_share(run)]
    run(owner, *create, option, as_option)
    assert stored(catalog, owner, added, text) == text.example
    # The audit log
    with catalog.reading() as session:
        events = session.scalars(select(AuditRow).where(AuditRow.object_name == name).order_by(AuditRow.key))
        details = [event.details for event in events if event.details is not None][-1]
    assert (details["before"].get(text.name), details["after"][text.name]) == (None, text.example)


def test_a_recipient_sees_its_texts_in_the_portal(server: Administered, run: Runner) -> None:
    options: list[str] = []
    expected = {}
    for text in TEXT_FIELDS["recipient"]:
        if not text.from_file:
            options += [f"--{text.name.replace('_', '-')}", text.example]
        if text.in_portal:
            expected[text.label] = text.example
    run("recipient", "add", "in_portal", "--share", a_share(run), *options)
    token = json.loads(Path("in_portal.share").read_text())["bearerToken"]
    headers = {"Authorization": f"Bearer {token}"}
    answer = plain_http.get(f"{server.root}/portal/api/status", headers=headers, timeout=30).json()
    assert answer.get("texts", {}) == expected


@each_field
@pytest.mark.parametrize("bad", ["blank", "too long", "of another form"])
def test_a_text_that_cannot_be_used_is_refused_with_its_field_and_remedy(
    server: Administered, owner: TextOwner, text: TextField, bad: str
) -> None:
    if bad == "of another form" and text.pattern is None:
        bad = "blank"
    value = {"blank": " ", "too long": "x" * (text.max_chars + 1), "of another form": "no such form"}[bad]
    with server.client(prefix=PROVIDER) as client:
        refused = client.post(f"/{owner}s", json={"name": "refused", text.name: value})
        assert client.get(f"/{owner}s/refused").status_code == 404
    assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert text.name in refused.json()["message"]
    assert f"of 1 to {text.max_chars} characters" in refused.json()["message"]


def test_limits_are_set_printed_and_removed_on_every_surface(
    server: Administered, run: Runner, tmp_path: Path
) -> None:
    catalog = server.provider.catalog

    def limits() -> dict[str, int]:
        with catalog.reading() as session:
            return dict(states.get_recipient(session, "limited").limits)

    def apply(fields: str) -> None:
        (tmp_path / "limits.yaml").write_text(f"recipients: {{limited: {{{fields}}}}}")
        run("apply", "-f", "limits.yaml", "--yes")

    run("sql", "-c", "CREATE RECIPIENT limited LIMITS (requests_per_minute = 60, bytes_per_day = 1000)")
    assert limits() == {"requests_per_minute": 60, "bytes_per_day": 1000}
    run("sql", "-c", "ALTER RECIPIENT limited SET LIMITS (urls_per_day = 7)")
    run("sql", "-c", "ALTER RECIPIENT limited UNSET LIMITS (bytes_per_day)")
    assert limits() == {"requests_per_minute": 60, "urls_per_day": 7}
    assert "limit urls_per_day" in run("sql", "-c", "DESCRIBE RECIPIENT limited")
    assert yaml.safe_load(run("export"))["recipients"]["limited"]["limits"] == limits()
    apply("comment: Left as they are.")
    assert limits() == {"requests_per_minute": 60, "urls_per_day": 7}
    apply("limits: {bytes_per_day: 5}")
    assert limits() == {"bytes_per_day": 5}
    apply("limits: {}")
    assert limits() == {}
    with server.client(prefix=PROVIDER) as client:
        sent = {"urls_per_day": 3}
        assert client.patch("/recipients/limited", json={"limits": sent}).json()["limits"] == sent
        for bad, field in (({"urls_per_day": 0}, "limits.urls_per_day"), ({"per_year": 1}, "per_year")):
            refused = client.patch("/recipients/limited", json={"limits": bad})
            assert (refused.status_code, field in refused.json()["message"]) == (400, True)
        assert client.get("/recipients/limited").json()["limits"] == sent
    run("recipient", "limit", "limited", "--requests-per-minute", "9")
    assert limits() == {"urls_per_day": 3, "requests_per_minute": 9}
    run("recipient", "limit", "limited", "--usual", "--bytes-per-day", "4")
    assert limits() == {"bytes_per_day": 4}
    with server.client(prefix=PROVIDER) as client:
        assert "limits" not in client.patch("/recipients/limited", json={"limits": None}).json()


def empty_file(folder: Path) -> Path:
    path = folder / "empty.txt"
    path.write_text("")
    return path


def a_share(run: Runner) -> str:
    if run.ended("share", "show", "for_texts").code != 0:
        run("share", "create", "for_texts")
    return "for_texts"
