"""Signed envelopes (DSSE 1.0) and the Ed25519 keys that sign them; statements inside are of in-toto, version 1."""

import base64
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lakeshare_server.errors import BadRequest, EvidenceRefused, Unavailable
from lakeshare_server.settings import StateSettings
from lakeshare_server.storage.stores import write_file

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
KEY_FILE = "evidence.key"
GIVEN_KEY = "LAKESHARE_EVIDENCE_KEY_FILE"

_log = logging.getLogger(__name__)


def encode_for_signature(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding."""
    kind = payload_type.encode("utf-8", "replace")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


@dataclass(frozen=True)
class PublicKey:
    """A public key of a provider; its id is the SHA-256 of its DER form (SubjectPublicKeyInfo)."""

    key: Ed25519PublicKey

    @property
    def key_id(self) -> str:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return hashlib.sha256(self.key.public_bytes(serialization.Encoding.DER, form)).hexdigest()

    @property
    def pem(self) -> str:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.key.public_bytes(serialization.Encoding.PEM, form).decode()

    def has_signed(self, signature: bytes, content: bytes) -> bool:
        try:
            self.key.verify(signature, content)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """A provider's private key."""

    key: Ed25519PrivateKey

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.key.public_key())

    def sign(self, statement: bytes) -> str:
        """The envelope of a statement, as JSON."""
        signature = self.key.sign(encode_for_signature(PAYLOAD_TYPE, statement))
        envelope = {
            "payload": base64.b64encode(statement).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": self.public.key_id, "sig": base64.b64encode(signature).decode()}],
        }
        return json.dumps(envelope, separators=(",", ":"))


def open_envelope(envelope: object, trusted: Sequence[PublicKey]) -> tuple[bytes, PublicKey]:
    """The statement of an envelope, and the trusted key that has signed it. Raises EvidenceRefused without one."""
    if not isinstance(envelope, Mapping):
        raise EvidenceRefused("The evidence has no DSSE envelope.")
    payload, payload_type = _decode(envelope.get("payload")), envelope.get("payloadType")
    signatures = envelope.get("signatures")
    if not isinstance(payload_type, str) or not isinstance(signatures, list):
        raise EvidenceRefused("The evidence has no DSSE envelope.")
    signed = encode_for_signature(payload_type, payload)
    # The key id in an envelope is a hint that is not signed (DSSE): each trusted key is tried.
    of_envelope = [_decode(each.get("sig")) for each in signatures if isinstance(each, Mapping)]
    for key in trusted:
        if any(key.has_signed(signature, signed) for signature in of_envelope):
            if payload_type != PAYLOAD_TYPE:
                raise EvidenceRefused(f"The evidence has the type {payload_type!r}, not {PAYLOAD_TYPE}.")
            return payload, key
    ids = ", ".join(str(each.get("keyid"))[:16] for each in signatures if isinstance(each, Mapping))
    given = ", ".join(key.key_id[:16] for key in trusted)
    raise EvidenceRefused(
        f"No given key has signed the evidence: it names key {ids or 'none'}, given are {given}. Ask the provider "
        "for the public key, by another way than this server."
    )


def _decode(text: object) -> bytes:
    """Decodes base64 in the standard and in the URL-safe alphabet, as DSSE requires."""
    try:
        return base64.b64decode(str(text).replace("-", "+").replace("_", "/"), validate=True)
    except ValueError as error:
        raise EvidenceRefused("The envelope of the evidence is not in base64.") from error


def parse_public_keys(option: str, paths: Iterable[Path]) -> list[PublicKey]:
    """Reads public keys in PEM files; raises BadRequest for any other file."""
    keys = []
    for path in paths:
        try:
            key = serialization.load_pem_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            hint = f"Give a PEM file with the provider's public key ({error})."
            raise BadRequest(option, str(path), hint) from error
        if not isinstance(key, Ed25519PublicKey):
            raise BadRequest(option, str(path), "Give an Ed25519 public key.")
        keys.append(PublicKey(key))
    return keys


def has_signing_key(settings: StateSettings) -> bool:
    """Whether the state folder has a key."""
    return (settings.state_dir / KEY_FILE).exists()


def load_signing_key(settings: StateSettings) -> SigningKey:
    """The key that signs evidence; made in the state folder if none is given or made yet.

    Raises:
        BadRequest: the given file is no private Ed25519 key.
        Unavailable: the key in the state folder cannot be used.
    """
    given, path = settings.evidence_key_file, settings.state_dir / KEY_FILE
    try:
        if given is None and not path.exists():
            # Another process may make it first.
            write_signing_key(path, if_absent=True)
        key = serialization.load_pem_private_key((given or path).read_bytes(), None)
        mode = path.stat().st_mode & 0o777 if given is None else 0o600
    except (OSError, ValueError, TypeError) as error:
        if given is not None:
            raise BadRequest(
                GIVEN_KEY, str(given), f"Give a PEM file with a private Ed25519 key ({error})."
            ) from error
        raise Unavailable(
            f"the evidence key {path} cannot be used: {error}", "Restore it from its backup."
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadRequest(
            GIVEN_KEY, str(given or path), "Give an Ed25519 key: openssl genpkey -algorithm ed25519"
        )
    if mode & 0o077:
        raise Unavailable(f"the evidence key {path} has mode {mode:o}", f"Run chmod 600 {path}.")
    return SigningKey(key)


def write_signing_key(path: Path, *, if_absent: bool) -> bool:
    """Writes a new key for its owner only; returns False, and writes nothing, if `if_absent` and the file exists."""
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = Ed25519PrivateKey.generate().private_bytes(serialization.Encoding.PEM, *form)
    return write_file(path, pem, if_absent=if_absent, mode=0o600)


def canonical_json(content: Any) -> str:
    """JSON with sorted keys and without spaces: the same content gives the same text."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
