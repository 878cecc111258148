"""The key that signs: given by setting, or made once in the state folder and shared by all server processes."""

import os
import secrets
import tempfile
from pathlib import Path

from lakeshare_server.errors import BadRequest, Unavailable
from lakeshare_server.settings import ServerSettings, make_private

KEY_BYTES = 32
KEY_FILE = "signing.key"


def load_key(settings: ServerSettings) -> bytes:
    """The signing key in force.

    Raises:
        BadRequest: the key that is given is too short.
        Unavailable: the key's file cannot be made or read, or others may read it.
    """
    if settings.signing_key is not None:
        return _given(settings.signing_key.get_secret_value().encode())
    path = settings.state_dir / KEY_FILE
    try:
        if not path.exists():
            _make(path)
        key = path.read_bytes()
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise Unavailable(
            f"the signing key {path} cannot be used: {error}", "Check the state folder."
        ) from error
    if mode & 0o077 or len(key) < KEY_BYTES:
        raise Unavailable(
            f"the signing key {path} is too short or has mode {mode:o}",
            "Remove it, a new one is made; signed URLs that are out stop working.",
        )
    return key


def _given(key: bytes) -> bytes:
    # Whoever guesses the key reads every file that the server can.
    if len(key) < KEY_BYTES:
        raise BadRequest(
            "LAKESHARE_SIGNING_KEY",
            f"{len(key)} bytes",
            f"Give {KEY_BYTES} bytes or more (openssl rand -hex {KEY_BYTES}), or unset it: a key is made in the "
            "state folder.",
        )
    return key


def _make(path: Path) -> None:
    """Whichever process links its key first has made the key; the others take it."""
    make_private(path.parent)
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{KEY_FILE}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        path.hardlink_to(scratch)
    except FileExistsError:
        return
    finally:
        Path(scratch).unlink()
