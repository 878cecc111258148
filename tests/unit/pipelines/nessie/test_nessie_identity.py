"""Tokens of the embedded Nessie are signed by a key that only the state folder's owner can read."""

import base64

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_public_key,
)

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.client import TOKEN_LIFE_S, format_public_key, load_signing_key, sign_token


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "key.pem"
    first = load_signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert format_public_key(load_signing_key(path)) == format_public_key(first)
    assert [entry.name for entry in tmp_path.iterdir()] == ["key.pem"]


@pytest.mark.parametrize("role", ["writer", "publisher"])
def test_a_token_names_its_role_and_lives_for_a_day(tmp_path, role):
    key = load_signing_key(tmp_path / "key.pem")
    public = load_der_public_key(base64.b64decode(format_public_key(key)))
    claims = jwt.decode(sign_token(key, role), public, algorithms=["RS256"])
    assert claims["groups"] == [role]
    assert claims["upn"] == role
    assert claims["exp"] - claims["iat"] == TOKEN_LIFE_S == 24 * 3600


def test_a_token_of_another_key_is_not_valid(tmp_path):
    public = load_signing_key(tmp_path / "ours.pem").public_key()
    foreign = sign_token(load_signing_key(tmp_path / "theirs.pem"), "publisher")
    with pytest.raises(jwt.InvalidSignatureError):
        jwt.decode(foreign, public, algorithms=["RS256"])


def half_of_it(pem: bytes) -> bytes:
    return pem[: len(pem) // 2]


def another_kind(_pem: bytes) -> bytes:
    key = ed25519.Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def with_a_password(_pem: bytes) -> bytes:
    key = ed25519.Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


@pytest.mark.parametrize("spoilt", [half_of_it, another_kind, with_a_password])
def test_a_key_that_cannot_be_used_is_named_with_its_remedy(tmp_path, spoilt):
    path = tmp_path / "key.pem"
    load_signing_key(path)
    path.write_bytes(spoilt(path.read_bytes()))

    with pytest.raises(NessieError, match="Remove it") as refusal:
        load_signing_key(path)

    assert str(path) in str(refusal.value)
    path.unlink()
    assert format_public_key(load_signing_key(path))
