"""A profile holds what the recipient's client needs, and is readable by its owner only."""

import json
import stat
from datetime import UTC, datetime
from pathlib import Path

from lakeshare_server.access.authentication import write_profile
from lakeshare_server.settings import ServerSettings


def test_a_profile_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "bob.share"
    write_profile(path, "http://host/delta-sharing", "secret", datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    write_profile(path, "http://host/delta-sharing", "newer", datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert json.loads(path.read_text()) == {
        "shareCredentialsVersion": 1,
        "endpoint": "http://host/delta-sharing",
        "bearerToken": "newer",
        "expirationTime": "2030-01-02T03:04:05.000000Z",
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_profile_names_the_door_for_iceberg_clients_where_there_is_one(tmp_path: Path) -> None:
    settings = ServerSettings(_env_file=None, public_url="https://share.example/below/")
    write_profile(tmp_path / "bob.share", settings.base_url(), "secret", None, settings.iceberg_url())
    said = json.loads((tmp_path / "bob.share").read_text())
    assert said["icebergEndpoint"] == "https://share.example/below/iceberg"
    assert said["endpoint"] == "https://share.example/below/delta-sharing"
