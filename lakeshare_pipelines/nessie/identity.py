"""Who may do what on the embedded Nessie: the key that signs its tokens, the tokens, the rules.

The key is made on first use and stays in the state folder, readable by its owner only. Whoever can read it
can publish; Spark never gets it, only a writer's token.
"""

import base64
import os
import tempfile
import time
from pathlib import Path
from typing import Literal

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from lakeshare_pipelines.errors import NessieError

Role = Literal["writer", "publisher"]

TOKEN_LIFE_S = 24 * 3600
KEY_BITS = 2048

READ = ("VIEW_REFERENCE", "READ_ENTRIES", "LIST_COMMIT_LOG", "READ_CONTENT_KEY", "READ_ENTITY_VALUE")
WRITE = (
    "CREATE_REFERENCE",
    "DELETE_REFERENCE",
    "COMMIT_CHANGE_AGAINST_REFERENCE",
    "CREATE_ENTITY",
    "UPDATE_ENTITY",
    "DELETE_ENTITY",
)
RULES = {
    "read": f"op in {list(READ)}",
    "branches": f"role=='writer' && ref!='main' && op in {list(WRITE)}",
    "publish": "role=='publisher'",
}


def signing_key(path: Path) -> rsa.RSAPrivateKey:
    """The key at `path`, made first when there is none; while it may be missing, hold the folder's lock.

    Raises:
        NessieError: what is there is no RSA key, or wants a password.
    """
    if not path.exists():
        _make_key(path)
    try:
        key: object = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise NessieError(
            0, "BAD_KEY", f"{path} is no RSA key. Remove it, and a new one is made when Nessie starts next"
        )
    return key


def public_key_text(key: rsa.RSAPrivateKey) -> str:
    """The public half as Quarkus wants it: base64 of the DER, without PEM lines."""
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def signed_token(key: rsa.RSAPrivateKey, role: Role, life_s: int = TOKEN_LIFE_S) -> str:
    """A bearer token for `role`."""
    now = int(time.time())
    claims = {
        "iss": "lakeshare",
        "sub": role,
        "upn": role,  # what Nessie's rules call `role`; its `roles` are the groups
        "groups": [role],
        "iat": now,
        "exp": now + life_s,
    }
    return jwt.encode(claims, key, algorithm="RS256")


def _make_key(path: Path) -> None:
    """Written aside with mode 600 and renamed, so that nobody ever reads half a key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor, aside = tempfile.mkstemp(prefix=".key-", dir=path.parent)  # mkstemp makes it 600
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    Path(aside).replace(path)
