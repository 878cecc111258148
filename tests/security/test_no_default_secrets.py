"""There is no secret that anybody could know beforehand: none by default, none in the repository, none in the demo."""

import json
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from lakeshare_pipelines.demo.processes import free_port, sharing_server
from lakeshare_pipelines.demo.story import write_recipient_profile
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.catalog.credentials import PREFIX, create_first_admin_key, find_admin_key
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import load_key
from tests.builders.sharing import a_provider
from tests.builders.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECRET = re.compile(r"secret|password|passphrase|token$|_key$|sas", re.IGNORECASE)


@pytest.mark.parametrize("settings", [LakeSettings, ServerSettings])
def test_no_setting_has_a_secret_by_default(settings: type[LakeSettings] | type[ServerSettings]) -> None:
    secret = {
        name: field
        for name, field in settings.model_fields.items()
        if SecretStr in getattr(field.annotation, "__args__", (field.annotation,)) or SECRET.search(name)
    }
    assert {name: field.default for name, field in secret.items() if field.default is not None} == {}


def test_the_example_of_settings_sets_nothing() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == []


def test_no_document_shows_a_key_that_would_open_something() -> None:
    shown = re.compile(re.escape(PREFIX).encode() + rb"[\w-]{43}")
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*")]:
        if path.is_file():
            assert not shown.search(path.read_bytes()), path


def test_two_installations_share_no_secret(tmp_path: Path) -> None:
    providers = [a_provider(tmp_path / name) for name in ("one", "other")]
    keys = [load_key(one.settings) for one in providers]
    first = [create_first_admin_key(one.catalog) for one in providers]
    tokens = [one.recipient("bob", ()) for one in providers]
    assert len({*keys, *first, *tokens}) == 6


def test_the_demo_hands_out_a_token_of_its_own(tmp_path: Path) -> None:
    profiles = []
    for name in ("one", "other"):
        catalog = a_provider(tmp_path / name).catalog
        profiles.append(tmp_path / name / "demo.share")
        write_recipient_profile(catalog, (), profiles[-1], "http://127.0.0.1:1")
    one, other = (json.loads(path.read_text()) for path in profiles)
    assert one["bearerToken"] != other["bearerToken"]
    assert {path.stat().st_mode & 0o777 for path in profiles} == {0o600}


def test_the_demo_s_server_keeps_its_key_out_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, log = a_provider(tmp_path), tmp_path / "server.log"
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    file = provider.settings.first_key_file
    with sharing_server(free_port(0), log):
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    assert PREFIX not in log.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    with provider.catalog.reading() as session:
        assert find_admin_key(session, file.read_text().strip()) is not None
