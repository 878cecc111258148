"""A signed URL opens one path, until its end, and nothing else whatever is changed in it."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.errors import BadRequest, Denied, Unavailable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import LocalSigner, load_key
from lakeshare_server.storage.location_columns import byte_strings
from lakeshare_server.storage.remote import SIGNATURE, Claim

# More than any run of all tests takes: this is the time of collection.
LATER_MS = int(time.time() * 1000) + 86_400_000
TICKETS = st.text("abcXYZ019-_", min_size=1, max_size=20)
PATHS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)


def a_signer(key: bytes = b"k" * 32) -> LocalSigner:
    return LocalSigner(key, "http://host/delta-sharing/files")


def claimed(url: bytes) -> tuple[Claim, str]:
    """What the byte endpoint understands of a URL."""
    parts = urlsplit(url.decode("ascii"))
    query = parse_qs(parts.query, keep_blank_values=True)
    ticket, _, name = parts.path.removeprefix("/delta-sharing/files/").partition("/")
    return Claim(ticket, unquote(name), int(query["expires"][0])), query[SIGNATURE][0]


@given(st.lists(PATHS, min_size=1, max_size=4), TICKETS)
@settings(deadline=None)
def test_every_name_survives_the_url_and_its_signature_holds(names: list[str], ticket: str) -> None:
    urls = byte_strings(a_signer().sign_all([name.encode() for name in names], ticket, LATER_MS))
    for name, url in zip(names, urls, strict=True):
        claim, signature = claimed(url)
        assert claim == Claim(ticket, name, LATER_MS)
        a_signer().verify(claim, signature)


@pytest.mark.parametrize(
    "changed",
    [
        Claim("bob", "data/b", LATER_MS),
        Claim("bob", "data/a/", LATER_MS),
        Claim("bob", "data/../data/a", LATER_MS),
        Claim("bob", "data/A", LATER_MS),
        Claim("eve", "data/a", LATER_MS),
        Claim("", "data/a", LATER_MS),
        Claim("bob", "data/a", LATER_MS + 1),
        Claim("bob\ndata/", "a", LATER_MS),
        Claim("bob/data", "a", LATER_MS),
    ],
)
def test_a_changed_claim_is_denied(changed: Claim) -> None:
    [url] = byte_strings(a_signer().sign_all([b"data/a"], "bob", LATER_MS))
    _, signature = claimed(url)
    a_signer().verify(Claim("bob", "data/a", LATER_MS), signature)
    with pytest.raises(Denied, match="signature"):
        a_signer().verify(changed, signature)


@given(st.text(max_size=80))
@settings(deadline=None)
def test_a_made_up_signature_is_denied(signature: str) -> None:
    with pytest.raises(Denied, match="signature"):
        a_signer().verify(Claim("bob", "data/a", LATER_MS), signature)


def test_a_signature_by_another_key_is_denied() -> None:
    [url] = byte_strings(a_signer(b"o" * 32).sign_all([b"data/a"], "bob", LATER_MS))
    with pytest.raises(Denied, match="signature"):
        a_signer().verify(*claimed(url))


def test_an_ended_url_is_denied() -> None:
    [url] = byte_strings(a_signer().sign_all([b"data/a"], "bob", int(time.time() * 1000) - 1))
    with pytest.raises(Denied, match="expired"):
        a_signer().verify(*claimed(url))


def test_urls_of_a_sliced_column_are_those_of_its_rows() -> None:
    paths = pa.array(["a", "b c", "ü", "d"])
    urls = byte_strings(a_signer().sign_all(byte_strings(paths.slice(1, 2)), "bob", LATER_MS))
    assert [claimed(url)[0].name for url in urls] == ["b c", "ü"]


def test_the_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    settings = ServerSettings(state_dir=tmp_path)
    key = load_key(settings)
    assert len(key) == 32
    assert load_key(settings) == key
    assert stat.S_IMODE((tmp_path / "signing.key").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["signing.key"]


def test_processes_that_start_together_agree_on_the_key(tmp_path: Path) -> None:
    code = (
        "from lakeshare_server.settings import ServerSettings\n"
        "from lakeshare_server.storage import load_key\n"
        "print(load_key(ServerSettings()).hex())"
    )
    environment = {**os.environ, "LAKESHARE_STATE_DIR": str(tmp_path / "state")}
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate()[0] for process in started}) == 1


def test_a_key_others_may_read_is_refused(tmp_path: Path) -> None:
    settings = ServerSettings(state_dir=tmp_path)
    load_key(settings)
    (tmp_path / "signing.key").chmod(0o644)
    with pytest.raises(Unavailable, match=r"signing\.key.*mode 644"):
        load_key(settings)


def test_a_given_key_is_used_and_none_is_made(tmp_path: Path) -> None:
    assert load_key(ServerSettings(state_dir=tmp_path, signing_key="given" * 7)) == b"given" * 7
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["", "x", "k" * 31])
def test_a_given_key_that_could_be_guessed_is_refused_with_the_remedy(tmp_path: Path, key: str) -> None:
    with pytest.raises(BadRequest, match=rf"LAKESHARE_SIGNING_KEY: '{len(key)} bytes'.* 32 bytes or more"):
        load_key(ServerSettings(state_dir=tmp_path, signing_key=key))
    assert list(tmp_path.iterdir()) == []


def test_a_variable_that_is_set_to_nothing_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("LAKESHARE_SIGNING_KEY=\nLAKESHARE_S3_REGION=\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    for variable in ("LAKESHARE_SIGNING_KEY", "LAKESHARE_DATABASE_URL", "LAKESHARE_PORT"):
        monkeypatch.setenv(variable, "")
    made = ServerSettings()
    assert (made.signing_key, made.s3_region, made.port) == (None, None, 8765)
    assert load_key(made) == (tmp_path / "state" / "signing.key").read_bytes()


def test_hosts_on_one_database_are_told_to_have_one_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, key = "postgresql+psycopg://host/lakeshare", "0123456789" * 4
    load_key(ServerSettings(_env_file=None, state_dir=tmp_path, database_url=url, signing_key=key))
    load_key(ServerSettings(_env_file=None, state_dir=tmp_path))
    assert caplog.messages == []
    load_key(ServerSettings(_env_file=None, state_dir=tmp_path, database_url=url))
    assert "LAKESHARE_SIGNING_KEY is not set" in caplog.text
