"""Certificates of a test's own: an authority, and one for 127.0.0.1 that it vouches for."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: who vouches, the server's own, and its key."""

    authority: Path
    own: Path
    key: Path


def certificates(folder: Path) -> Certificates:
    """For a server on 127.0.0.1, good for a day."""
    authority_key, own_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority of a test")])
    own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = Certificates(folder / "authority.pem", folder / "own.pem", folder / "key.pem")
    vouching = _unsigned(authority, authority, authority_key, is_authority=True)
    vouched_for = _unsigned(own, authority, own_key, is_authority=False).add_extension(here, critical=False)
    for file, unsigned in ((made.authority, vouching), (made.own, vouched_for)):
        signed = unsigned.sign(authority_key, hashes.SHA256())
        file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        own_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return made


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
