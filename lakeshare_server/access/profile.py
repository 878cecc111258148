"""The profile a recipient's client reads. Version 1: clients refuse bearer tokens in any other."""

import json
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path


def profile_fields(
    base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> dict[str, object]:
    """What a profile says; `iceberg_url` is where Iceberg clients find the same shares (`icebergEndpoint`)."""
    profile: dict[str, object] = {"shareCredentialsVersion": 1, "endpoint": base_url, "bearerToken": token}
    if iceberg_url is not None:
        profile["icebergEndpoint"] = iceberg_url
    if expires_at is not None:
        profile["expirationTime"] = expires_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return profile


def write_profile(
    path: Path, base_url: str, token: str, expires_at: datetime | None, iceberg_url: str | None = None
) -> None:
    """Write a profile that only its owner can read, whole or not at all."""
    profile = profile_fields(base_url, token, expires_at, iceberg_url)
    path.parent.mkdir(parents=True, exist_ok=True)
    # mkstemp gives mode 600, and the rename keeps it.
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(profile, indent=2) + "\n")
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise
