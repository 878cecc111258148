"""Envelopes are those of DSSE: the published example, both alphabets, several signatures, and given keys only."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from lakeshare_server.errors import BadRequest, EvidenceRefused, Unavailable
from lakeshare_server.settings import StateSettings
from lakeshare_server.tables.envelope import (
    KEY_FILE,
    SigningKey,
    encode_for_signature,
    load_signing_key,
    open_envelope,
    parse_public_keys,
    write_signing_key,
)

# The test vector of DSSE 1.0 (protocol.md): payload, type, encoding and signature.
PAYLOAD, PAYLOAD_TYPE = b"hello world", "http://example.com/HelloWorld"
ENCODED = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
X = 46950820868899156662930047687818585632848591499744589407958293238635476079160
Y = 5640078356564379163099075877009565129882514886557779369047442380624545832820
SIGNATURE = "A3JqsQGtVsJ2O2xqrI5IcnXip5GToJ3F+FnZ+O88SjtR6rDAajabZKciJTfUiHqJPcIAriEGAHTVeCUjW2JIZA=="


def settings_in(folder: Path, **given: Any) -> StateSettings:
    return StateSettings(_env_file=None, state_dir=folder, **given)


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_signing_key(settings_in(tmp_path))


def test_the_encoding_is_that_of_the_published_example() -> None:
    assert encode_for_signature(PAYLOAD_TYPE, PAYLOAD) == ENCODED
    raw = base64.b64decode(SIGNATURE)
    numbers = (int.from_bytes(part, "big") for part in (raw[:32], raw[32:]))
    public = ec.EllipticCurvePublicNumbers(X, Y, ec.SECP256R1()).public_key()
    public.verify(encode_dss_signature(*numbers), ENCODED, ec.ECDSA(hashes.SHA256()))
    assert encode_for_signature("ü", b"") == "DSSEv1 2 ü 0 ".encode()


def test_a_statement_is_opened_with_the_key_that_signed_it(key: SigningKey, tmp_path: Path) -> None:
    envelope, other = json.loads(key.sign(b'{"a":"?>"}')), load_signing_key(settings_in(tmp_path / "2"))
    assert open_envelope(envelope, [other.public, key.public]) == (b'{"a":"?>"}', key.public)
    [signature] = envelope["signatures"]
    assert signature["keyid"] == key.public.key_id
    second = {"keyid": "hint", "sig": base64.b64encode(b"x" * 64).decode()}
    url_safe = {name: value.translate(str.maketrans("+/", "-_")) for name, value in signature.items()}
    for signatures in ([second, signature], [url_safe], [{**signature, "keyid": "wrong"}]):
        assert open_envelope({**envelope, "signatures": signatures}, [key.public])[1] == key.public


@pytest.mark.parametrize(
    "change",
    [
        lambda envelope: {**envelope, "payload": base64.b64encode(b'{"a":2}').decode()},
        lambda envelope: {**envelope, "payloadType": "application/json"},
        lambda envelope: {**envelope, "payloadType": "\ud800"},
        lambda envelope: {**envelope, "payload": "no base64!"},
        lambda envelope: {**envelope, "signatures": []},
        lambda envelope: {**envelope, "signatures": [{"sig": "AA=="}, "x"]},
        lambda envelope: {**envelope, "signatures": None},
        lambda _: None,
    ],
)
def test_any_other_envelope_is_refused(key: SigningKey, change: Callable[[Any], Any]) -> None:
    with pytest.raises(EvidenceRefused):
        open_envelope(change(json.loads(key.sign(b'{"a":1}'))), [key.public])


def test_a_signed_payload_of_another_type_is_refused(key: SigningKey) -> None:
    signature = key.key.sign(encode_for_signature("text/plain", b"{}"))
    signed = {"payload": "e30=", "payloadType": "text/plain"}
    envelope = {**signed, "signatures": [{"sig": base64.b64encode(signature).decode()}]}
    with pytest.raises(EvidenceRefused, match="type 'text/plain'"):
        open_envelope(envelope, [key.public])


def test_the_key_is_kept_for_its_owner_only(key: SigningKey, tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_signing_key(settings_in(tmp_path)).public.key_id == key.public.key_id
    assert not write_signing_key(path, if_absent=True)
    path.chmod(0o640)
    with pytest.raises(Unavailable, match="chmod 600"):
        load_signing_key(settings_in(tmp_path))


def test_files_with_other_keys_are_refused_by_name(key: SigningKey, tmp_path: Path) -> None:
    public, other = tmp_path / "public.pem", tmp_path / "other"
    public.write_text(key.public.pem)
    assert parse_public_keys("--key", [public])[0].key_id == key.public.key_id
    other.write_text("-----BEGIN NOTHING-----")
    for wrong in (other, tmp_path / KEY_FILE, tmp_path / "none"):
        with pytest.raises(BadRequest, match="--key"):
            parse_public_keys("--key", [wrong])
    for wrong in (other, public, tmp_path / "none"):
        with pytest.raises(BadRequest, match="LAKESHARE_EVIDENCE_KEY_FILE"):
            load_signing_key(settings_in(tmp_path, evidence_key_file=wrong))
