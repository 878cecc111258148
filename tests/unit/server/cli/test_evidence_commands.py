"""Keys are made, listed, exported and rotated by command, and publications without a statement are signed."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from lakeshare_server.catalog import EvidenceStore, FollowedTables, Ledger
from lakeshare_server.errors import EvidenceRefused
from lakeshare_server.tables.envelope import KEY_FILE, PublicKey, open_envelope, parse_public_keys
from lakeshare_server.tables.hash_tree import commit_text
from tests.builders.commands import Runner, a_state_folder
from tests.builders.lake_tables import a_delta_table
from tests.builders.publications import a_publication
from tests.builders.sharing import Provider, a_provider


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    a_state_folder(tmp_path, monkeypatch)
    return Runner(monkeypatch, capsys)


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    """A table with a publication without a statement."""
    provider = a_provider(tmp_path)
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"))
    return provider


def envelope_of(provider: Provider) -> Any:
    evidence = EvidenceStore(provider.catalog).find("lake.flights", 0)
    assert evidence is not None
    return json.loads(evidence.envelope)


def exported(run: Runner, path: Path, *arguments: str) -> PublicKey:
    run("evidence", "export", *arguments, "--to", str(path))
    return parse_public_keys("--key", [path])[0]


def test_a_rotated_key_signs_no_more_and_what_it_has_signed_stays_valid(
    run: Runner, provider: Provider, tmp_path: Path
) -> None:
    old = exported(run, tmp_path / "old.pem")
    assert "signed lake.flights 0\n1 publications signed, 0 not" in run("evidence", "sign")
    assert "0 publications signed" in run("evidence", "sign")
    run("evidence", "new-key")
    new = exported(run, tmp_path / "new.pem")
    assert open_envelope(envelope_of(provider), [old])[1] == old
    with pytest.raises(EvidenceRefused):
        open_envelope(envelope_of(provider), [new])
    listed = json.loads(run("evidence", "keys", "--json"))
    assert [key["key_id"] for key in listed] == [old.key_id, new.key_id]
    assert [key["retired_at"] is None for key in listed] == [False, True]
    assert f"{new.key_id}\t" in run("evidence", "keys")
    assert exported(run, tmp_path / "again.pem", old.key_id[:12]).key_id == old.key_id
    run("evidence", "sign", "lake.flights", "--number", "0")
    assert open_envelope(envelope_of(provider), [old, new])[1].key_id == new.key_id


def test_a_given_key_is_replaced_by_a_file_for_all_hosts(
    run: Runner, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("evidence", "new-key", "--to", str(tmp_path / "shared.key"))
    monkeypatch.setenv("LAKESHARE_EVIDENCE_KEY_FILE", str(tmp_path / "shared.key"))
    shared = exported(run, tmp_path / "shared.pem")
    run("evidence", "sign", "lake.flights")
    assert open_envelope(envelope_of(provider), [shared])[1].key_id == shared.key_id
    assert "give --to" in run.ended("evidence", "new-key").errors
    assert "The file exists" in run.ended("evidence", "new-key", "--to", str(tmp_path / "shared.key")).errors
    run("evidence", "new-key", "--to", str(tmp_path / "next.key"))
    retired = {key.key_id: key.retired_at is not None for key in EvidenceStore(provider.catalog).list_keys()}
    assert retired.pop(shared.key_id)
    # A host that does not sign exports the key of those that do, and makes none.
    monkeypatch.delenv("LAKESHARE_EVIDENCE_KEY_FILE")
    assert {exported(run, tmp_path / "same.pem").key_id: False} == retired
    assert not (provider.settings.state_dir / KEY_FILE).exists()


def test_the_provider_opens_what_recipients_get_as_commitments(run: Runner, provider: Provider) -> None:
    inputs = {
        "deliveries": {"2013-01-01": "d" * 64},
        "inputs": {"lake.flights": {"lake.raw": {"version": 3}}},
    }
    publication = Ledger(provider.catalog).latest("lake.flights")
    assert publication is not None
    again = {**vars(publication), "run_id": "again", "delta_version": 7, "verdicts": {**inputs, "checks": 4}}
    for name in ("version", "published_at"):
        del again[name]
    Ledger(provider.catalog).append([a_publication(**again)])
    run("evidence", "sign")
    shown = json.loads(run("evidence", "show", "lake.flights"))
    predicate, opened = shown["statement"]["predicate"], shown["opened"]
    assert json.loads(opened["inputs"]["text"]) == inputs
    for name in ("details", "inputs"):
        assert commit_text(bytes.fromhex(opened[name]["salt"]), opened[name]["text"]) == predicate[name]
    assert (predicate["version"], predicate["audit"]) == (7, {"checks": 4})
    payload = base64.b64decode(
        json.loads(EvidenceStore(provider.catalog).latest("lake.flights").envelope)["payload"]
    )  # type: ignore[union-attr]
    assert b"lake.raw" not in payload


def test_what_cannot_be_signed_is_refused_with_the_reason(
    run: Runner, provider: Provider, tmp_path: Path
) -> None:
    FollowedTables(provider.catalog).add("lake.followed", str(a_delta_table(tmp_path / "other")), 0.0)
    Ledger(provider.catalog).append([a_publication(table="lake.seen", audited=False)])
    refusals = {
        ("sign", "lake.flights", "--number", "9"): "Give TABLE and a number",
        ("sign", "--number", "0"): "Give TABLE and a number",
        ("sign", "lake.seen", "--number", "0"): "no audit has seen",
        ("show", "lake.none"): "Give a table with publications",
        ("show", "lake.flights"): "lakeshare evidence sign",
        ("export", "00"): "0 keys are meant",
    }
    for arguments, reason in refusals.items():
        ended = run.ended("evidence", *arguments)
        assert (ended.code, reason in ended.errors) == (1, True), (arguments, ended)
    publication = Ledger(provider.catalog).latest("lake.flights")
    assert publication is not None
    lost = {**vars(publication), "run_id": "lost", "table": "lake.lost", "index_digest": "0" * 64}
    lost |= {"location": str(tmp_path / "nowhere")}
    for name in ("version", "published_at"):
        del lost[name]
    Ledger(provider.catalog).append([a_publication(**lost)])
    ended = run.ended("evidence", "sign")
    assert (ended.code, "1 publications signed, 1 not" in ended.output) == (1, True)
    assert "not signed: lake.lost 0" in ended.errors
