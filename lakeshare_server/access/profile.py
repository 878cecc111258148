"""The profile a recipient's client reads. Version 1: clients refuse bearer tokens in any other."""

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from lakeshare_server.catalog.sharing import Given, RecipientState
from lakeshare_server.settings import ServerSettings


def profile_of(recipient: RecipientState, given: Given, settings: ServerSettings) -> dict[str, object]:
    """The profile around a secret that was just given: the one that clients take it from."""
    if given.state.kind == "client_secret":
        return oauth_profile(
            settings.base_url(), settings.token_url(), recipient.id, given.secret, settings.iceberg_url()
        )
    ends = [end for end in (given.state.expires_at, recipient.expires_at) if end is not None]
    return bearer_profile(settings.base_url(), given.secret, min(ends, default=None), settings.iceberg_url())


def oauth_profile(
    base_url: str, token_url: str, client_id: str, client_secret: str, iceberg_url: str | None = None
) -> dict[str, object]:
    """A profile with a client secret, for which clients get access tokens. They take it in version 2 only."""
    profile: dict[str, object] = {
        "shareCredentialsVersion": 2,
        "type": "oauth_client_credentials",
        "endpoint": base_url,
        "tokenEndpoint": token_url,
        "clientId": client_id,
        "clientSecret": client_secret,
    }
    if iceberg_url is not None:
        profile["icebergEndpoint"] = iceberg_url
    return profile


def basic_profile(base_url: str, recipient_id: str, token: str) -> dict[str, object]:
    """A profile with the same bearer token as a password, for what speaks Basic only."""
    return {
        "shareCredentialsVersion": 2,
        "type": "basic",
        "endpoint": base_url,
        "username": recipient_id,
        "password": token,
    }


def bearer_profile(
    base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> dict[str, object]:
    """A profile with a bearer token.

    `iceberg_url` is where Iceberg clients find the same shares (OpenSharing's `icebergEndpoint`).
    """
    profile: dict[str, object] = {"shareCredentialsVersion": 1, "endpoint": base_url, "bearerToken": token}
    if iceberg_url is not None:
        profile["icebergEndpoint"] = iceberg_url
    if expires_at is not None:
        profile["expirationTime"] = expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return profile


def profile_text(profile: Mapping[str, object]) -> str:
    """A profile as its file has it."""
    return json.dumps(profile, indent=2) + "\n"


def write_profile(
    path: Path, base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> None:
    """Write a profile with a bearer token, as `write_profile_file` does."""
    write_profile_file(path, bearer_profile(base_url, token, expires_at, iceberg_url))


def write_profile_file(path: Path, profile: Mapping[str, object]) -> None:
    """Write a profile that only its owner can read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp gives mode 600, and the rename keeps it.
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(profile_text(profile))
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
