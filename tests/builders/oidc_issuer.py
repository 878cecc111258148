"""An OIDC issuer in a thread of the test, that can change its keys, lie and fall silent."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.builders.http_server import listening


class AnIssuer(ThreadingHTTPServer):
    """Publishes its keys and signs tokens; counts who asks for what."""

    def __init__(self, name: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Documents)
        self._name = name
        # A dripping answer ends with its client, not with the test.
        self.daemon_threads = True
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.url = f"http://{self.host}/realm"
        self.asked: list[str] = []
        self.is_silent = False
        # Seconds between two bytes of an answer.
        self.drip_s = 0.0
        self.most_at_once = self.at_once = 0
        self._counting = threading.Lock()
        self.about: dict[str, Any] = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }
        # What the token endpoint gives for a code, by the code: the challenge, and the claims.
        self.codes: dict[str, tuple[str, dict[str, Any]]] = {}
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.published: list[dict[str, Any]] = []
        self.change_key("first")

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A request that is being answered."""
        with self._counting:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            yield
        finally:
            with self._counting:
                self.at_once -= 1

    def change_key(self, key_id: str) -> None:
        """A new key instead of the old ones."""
        key = _make_key(self._name, key_id)
        self.keys = {key_id: key}
        public = json.loads(RSAAlgorithm.to_jwk(key.public_key()))
        self.published = [{**public, "kid": key_id, "use": "sig", "alg": "RS256"}]

    def token(self, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token as it signs one, but for the claims given; None leaves one out."""
        now = int(time.time())
        said = {
            "iss": self.url,
            "aud": "lakeshare",
            "sub": "acme-job",
            "iat": now,
            "exp": now + 600,
            **claims,
        }
        key_id, key = next(iter(self.keys.items()))
        kept = {name: value for name, value in said.items() if value is not None}
        # Signed as it is: the library itself refuses to make some of what an issuer may send.
        payload = json.dumps(kept).encode()
        return jwt.PyJWS().encode(payload, key, "RS256", headers={"kid": key_id, **(headers or {})})


class _Documents(BaseHTTPRequestHandler):
    server: AnIssuer

    def do_GET(self) -> None:
        with self.server.counted():
            self._answer()

    def do_POST(self) -> None:
        """The token endpoint: a code works once, with the verifier of its challenge (RFC 7636)."""
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = dict(parse_qsl(body))
        challenge, claims = self.server.codes.pop(form.get("code", ""), ("", {}))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        is_right = base64.urlsafe_b64encode(digest).decode().rstrip("=") == challenge
        token = {"id_token": self.server.token(**claims), "token_type": "Bearer"}
        answer = json.dumps(token if is_right else {"error": "invalid_grant"}).encode()
        self.send_response(200 if is_right else 400)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _answer(self) -> None:
        self.server.asked.append(self.path)
        documents: dict[str, Any] = {
            "/realm/.well-known/openid-configuration": self.server.about,
            "/realm/keys": {"keys": self.server.published},
        }
        document = None if self.server.is_silent else documents.get(self.path)
        if document == "elsewhere":
            self.send_response(302)
            self.send_header("Location", f"{self.server.url}/keys")
            body = b""
        else:
            self.send_response(503 if document is None else 200)
            body = json.dumps(document).encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not self.server.drip_s:
            self.wfile.write(body)
            return
        with suppress(OSError):
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(self.server.drip_s)

    def log_message(self, *_: object) -> None:
        """Silence: the tests say what was asked."""


@cache
def _make_key(issuer: str, key_id: str) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@contextmanager
def an_issuer(name: str = "") -> Iterator[AnIssuer]:
    """An issuer until the end of the block. Issuers of one name have the same keys, to spare making them."""
    issuer = AnIssuer(name)
    with listening(issuer):
        yield issuer
