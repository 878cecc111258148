"""A service account of nobody, with a private key of its own and tokens from wherever a test says."""

import json
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.builders.answering_store import said

EMAIL = "signer+1@lake.iam.gserviceaccount.com"


def google_account(token_uri: str = "http://127.0.0.1:9/token") -> dict[str, str]:
    """What stands in its file."""
    return {
        "type": "service_account",
        "client_email": EMAIL,
        "private_key_id": "1",
        "private_key": _private_key(),
        "token_uri": token_uri,
    }


def account_file(folder: Path, token_uri: str) -> Path:
    """The file, for GOOGLE_APPLICATION_CREDENTIALS."""
    file = folder / "account.json"
    file.write_text(json.dumps(google_account(token_uri)))
    return file


def token_answer(token: str) -> bytes:
    """A token service's answer."""
    body = json.dumps({"access_token": token, "expires_in": 3600, "token_type": "Bearer"})
    return said("200 OK", body, "Content-Type: application/json")


@cache
def _private_key() -> str:
    return (
        rsa.generate_private_key(65537, 2048)
        .private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        .decode()
    )
