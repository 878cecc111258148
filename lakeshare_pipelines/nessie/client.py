"""The Nessie client: refs and contents through pynessie, merges and history through the v2 API.

pynessie cannot give a merge its metadata, run it dry, or page through a history; `calls.py` does that.
"""

import base64
import importlib
import os
import ssl
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx
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

TIMEOUT_S = 60
PAGE_SIZE = 200
LOOPBACK = ("127.0.0.1", "localhost", "::1")
CODES = {401: "UNAUTHENTICATED", 403: "FORBIDDEN"}


class JsonApi:
    """JSON in, JSON out, errors as NessieError."""

    def __init__(self, uri: str, token: str | None) -> None:
        bypass_proxy(uri)
        self._uri = uri.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """The answer to a GET of `path`, which is quoted already."""
        return self._ask("GET", path, parameters, None)

    def post(
        self, path: str, body: Mapping[str, Any], parameters: Mapping[str, str | int] | None = None
    ) -> dict[str, Any]:
        """The answer to a POST."""
        return self._ask("POST", path, parameters, body)

    def pages(self, path: str, items: str, parameters: Mapping[str, str | int]) -> Iterator[dict[str, Any]]:
        """The `items` of every page, fetched as they are consumed."""
        token: dict[str, str] = {}
        while True:
            page = self.get(path, {**parameters, "max-records": PAGE_SIZE, **token})
            yield from page[items]
            if not page.get("hasMore"):
                return
            token = {"page-token": page["token"]}

    def _ask(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str | int] | None,
        body: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        url = self._uri + path
        try:
            with httpx.Client(verify=_certificates(), timeout=TIMEOUT_S, headers=self._headers) as client:
                response = client.request(method, url, params=dict(parameters or {}), json=body)
        except httpx.HTTPError as error:
            raise unreachable_error(self._uri, error) from error
        if not response.is_success:
            raise _make_error(response)
        return _json(response)


def unreachable_error(uri: str, error: Exception) -> NessieError:
    """The error for a server that does not answer."""
    return NessieError(
        0,
        "UNREACHABLE",
        f"{uri} does not answer ({_get_innermost_cause(error)}). `lakeshare doctor` says whether Nessie "
        "runs; the embedded one "
        "is started again by the next run",
    )


def _get_innermost_cause(error: Exception) -> str:
    """The innermost cause: the HTTP libraries wrap "connection refused" in a paragraph."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return str(cause) or type(cause).__name__


def get_error_code(status: int, code: str | None) -> str:
    """Nessie's error code, or a word for the statuses that come without one."""
    return code if code and code != "UNKNOWN" else CODES.get(status, "UNKNOWN")


def bypass_proxy(uri: str) -> None:
    """Never ask a proxy for a server on this very machine; every HTTP library used here reads NO_PROXY."""
    host = urlsplit(uri).hostname
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if host in LOOPBACK and listed != "*" and host not in listed.split(","):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{listed},{host}" if listed else host


def ref_path(ref: str) -> str:
    """`/trees/<ref>` with the ref quoted; `ref` may be `name@hash`."""
    return f"/trees/{quote(ref, safe='@')}"


@cache
def _certificates() -> ssl.SSLContext:
    # The machine's own, with SSL_CERT_FILE; reading them takes longer than a call.
    return ssl.create_default_context()


def _make_error(response: httpx.Response) -> NessieError:
    try:
        body = response.json()
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    message = body.get("message") or response.reason_phrase
    return NessieError(
        response.status_code, get_error_code(response.status_code, body.get("errorCode")), message
    )


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError as error:
        raise not_nessie_error(str(response.url)) from error
    if not isinstance(body, dict):
        raise not_nessie_error(str(response.url))
    return body


def not_nessie_error(uri: str) -> NessieError:
    """The error for an answer that Nessie would not give."""
    return NessieError(0, "NOT_NESSIE", f"{uri} answers, but not as Nessie does. Check LAKESHARE_NESSIE_URI")


@dataclass(frozen=True)
class NessieEndpoint:
    """Where Nessie is, and the tokens this process may show it; None where it asks for none."""

    uri: str
    writer_token: str | None
    publisher_token: str | None


@dataclass(frozen=True)
class Reference:
    """A branch or tag and the commit it is at."""

    name: str
    hash: str
    type: Literal["BRANCH", "TAG"]


@dataclass(frozen=True)
class Branch:
    """A branch with what a janitor asks about it; `committed_at` is None for a branch at the empty root."""

    name: str
    hash: str
    committed_at: datetime | None
    ahead: int
    behind: int


@dataclass(frozen=True)
class TableContent:
    """Which state of an Iceberg table a commit holds."""

    id: str
    metadata_location: str
    snapshot_id: int
    schema_id: int
    spec_id: int
    sort_order_id: int


@dataclass(frozen=True)
class Commit:
    """One commit of a history."""

    hash: str
    message: str
    properties: Mapping[str, str]
    committed_at: datetime
    parent: str


@dataclass(frozen=True)
class Merge:
    """What a merge did: `head` is the target's commit after it, or would be after a dry run."""

    applied: bool
    head: str


def parse_branch(reference: Mapping[str, Any]) -> Branch:
    """A branch from a reference fetched with all its metadata."""
    metadata = reference.get("metadata") or {}
    head = metadata.get("commitMetaOfHEAD")
    return Branch(
        name=reference["name"],
        hash=reference["hash"],
        committed_at=datetime.fromisoformat(head["commitTime"]) if head else None,
        ahead=metadata.get("numCommitsAhead") or 0,
        behind=metadata.get("numCommitsBehind") or 0,
    )


def parse_table_content(content: Mapping[str, Any]) -> TableContent:
    """The state of an Iceberg table from a content as the API tells it."""
    return TableContent(
        id=content["id"],
        metadata_location=content["metadataLocation"],
        snapshot_id=content["snapshotId"],
        schema_id=content["schemaId"],
        spec_id=content["specId"],
        sort_order_id=content["sortOrderId"],
    )


def parse_commit(entry: Mapping[str, Any]) -> Commit:
    """A commit from an entry of a history."""
    meta = entry["commitMeta"]
    return Commit(
        hash=meta["hash"],
        message=meta["message"],
        # Each property is a list of values on the wire; ours have one.
        properties={name: values[0] for name, values in meta.get("allProperties", {}).items()},
        committed_at=datetime.fromisoformat(meta["commitTime"]),
        parent=meta["parentCommitHashes"][0],
    )


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


def load_signing_key(path: Path) -> rsa.RSAPrivateKey:
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


def format_public_key(key: rsa.RSAPrivateKey) -> str:
    """The public half as Quarkus wants it: base64 of the DER, without PEM lines."""
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def sign_token(key: rsa.RSAPrivateKey, role: Role, life_s: int = TOKEN_LIFE_S) -> str:
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


CONTENT_NOT_FOUND = "CONTENT_NOT_FOUND"
TABLE = "ICEBERG_TABLE"


class Nessie:
    """One server, spoken to in one role. A method that is refused or not answered raises NessieError."""

    def __init__(self, uri: str, token: str | None) -> None:
        self._uri = uri
        self._calls = JsonApi(uri, token)
        self._v1 = _pynessie_client(uri, token)

    @classmethod
    def connect(cls, endpoint: NessieEndpoint, role: Role) -> "Nessie":
        """A client in `role`; nothing is sent yet."""
        return cls(endpoint.uri, endpoint.writer_token if role == "writer" else endpoint.publisher_token)

    def reference(self, name: str) -> Reference:
        """The branch or tag `name`."""
        with self._translated():
            return _reference(self._v1.get_reference(name))

    def branches(self, prefix: str = "") -> list[Branch]:
        """Branches whose names start with `prefix`, main excepted."""
        found = self._calls.pages(
            "/trees", "references", {"filter": f"ref.name.startsWith({_quote_cel(prefix)})", "fetch": "ALL"}
        )
        return [
            parse_branch(reference)
            for reference in found
            if reference["type"] == "BRANCH" and reference["name"] != "main"
        ]

    def create_branch(self, name: str, at: str) -> Reference:
        """A branch at the commit `at`, which must be one of main's."""
        with self._translated():
            return _reference(self._v1.create_branch(name, "main", at))

    def delete_branch(self, name: str, expected_hash: str) -> None:
        """Delete a branch that still is at `expected_hash`."""
        with self._translated():
            self._v1.delete_branch(name, expected_hash)

    def content(self, table: str, at: str) -> TableContent | None:
        """The table as `at` (`branch` or `branch@hash`) holds it; None when it holds none."""
        from pynessie.model import ContentKey, IcebergTable

        name, _, commit = at.partition("@")
        try:
            with self._translated():
                found = self._v1.get_content(name, ContentKey(table.split(".")), commit or None)
        except NessieError as error:
            if error.code == CONTENT_NOT_FOUND:
                return None
            raise
        if not isinstance(found, IcebergTable):
            return None
        return TableContent(
            id=found.id or "",
            metadata_location=found.metadata_location,
            snapshot_id=found.snapshot_id,
            schema_id=found.schema_id,
            spec_id=found.spec_id,
            sort_order_id=found.sort_order_id,
        )

    def tables(self, at: str) -> list[str]:
        """Names of all Iceberg tables at `branch` or `branch@hash`, sorted."""
        name, _, commit = at.partition("@")
        names: list[str] = []
        token: str | None = None
        while True:
            with self._translated():
                page = self._v1.list_keys(name, commit or None, page_token=token)
            names += [".".join(entry.name.elements) for entry in page.entries if entry.kind == TABLE]
            if not page.has_more:
                return sorted(names)
            token = page.token

    def contents(self, at: str) -> Iterator[tuple[str, TableContent]]:
        """All Iceberg tables at `branch` or `branch@hash` with their states, in no order."""
        entries = self._calls.pages(f"{ref_path(at)}/entries", "entries", {"content": "true"})
        for entry in entries:
            if entry["type"] == TABLE:
                yield ".".join(entry["name"]["elements"]), parse_table_content(entry["content"])

    def log(self, ref: str) -> Iterator[dict[str, Any]]:
        """Commits of `ref`, newest first, with their operations, as Nessie tells them (API v2, LogEntry)."""
        return self._calls.pages(f"{ref_path(ref)}/history", "logEntries", {"fetch": "ALL"})

    def history(self, ref: str, limit: int | None = None) -> Iterator[Commit]:
        """Commits of `ref` (`branch` or `branch@hash`), newest first; pages are fetched as they are consumed."""
        entries = self._calls.pages(f"{ref_path(ref)}/history", "logEntries", {})
        return (parse_commit(entry) for entry in islice(entries, limit))

    def merge(
        self,
        branch: str,
        from_hash: str,
        onto: str = "main",
        *,
        onto_hash: str,
        message: str,
        author: str,
        properties: Mapping[str, str],
        dry_run: bool = False,
    ) -> Merge:
        """Bring everything up to `from_hash` onto `onto`, all tables in one commit that carries `properties`.

        The branch may have moved on: later commits stay behind. `onto_hash` is a lower bound, not a
        compare-and-swap: commits after it are accepted when they touched other tables.

        Raises:
            NessieError: `REFERENCE_CONFLICT` when a table changed on both sides.
        """
        response = self._calls.post(
            f"{ref_path(f'{onto}@{onto_hash}')}/history/merge",
            {
                "fromRefName": branch,
                "fromHash": from_hash,
                "commitMeta": _commit_meta(message, author, properties),
                "defaultKeyMergeMode": "NORMAL",
                "isReturnConflictAsResult": False,
                # The published description says dryRun; by that name it is ignored, and the merge happens.
                "isDryRun": dry_run,
            },
        )
        if not response["wasSuccessful"]:
            raise NessieError(
                409, "REFERENCE_CONFLICT", f"{branch} does not merge onto {onto}: {response['details']}"
            )
        return Merge(
            response["wasApplied"], response["resultantTargetHash"] or response["effectiveTargetHash"]
        )

    def put_table(
        self,
        table: str,
        content: TableContent,
        on: str,
        expected_hash: str,
        *,
        message: str,
        properties: Mapping[str, str],
        author: str = "lakeshare",
    ) -> str:
        """Make `content` the table's state on the branch `on` in one commit, and return that commit.

        Raises:
            NessieError: `REFERENCE_CONFLICT` when the table changed since `expected_hash`.
        """
        operation = {
            "type": "PUT",
            "key": {"elements": table.split(".")},
            "content": {
                "type": TABLE,
                "id": content.id or None,
                "metadataLocation": content.metadata_location,
                "snapshotId": content.snapshot_id,
                "schemaId": content.schema_id,
                "specId": content.spec_id,
                "sortOrderId": content.sort_order_id,
            },
        }
        return self._commit(on, expected_hash, operation, _commit_meta(message, author, properties))

    def drop_table(
        self, table: str, on: str, expected_hash: str, *, message: str, author: str = "lakeshare"
    ) -> str:
        """Take the table off the branch `on` in one commit, and return that commit; its files stay.

        Raises:
            NessieError: `REFERENCE_CONFLICT` when the table changed since `expected_hash`.
        """
        operation = {"type": "DELETE", "key": {"elements": table.split(".")}}
        return self._commit(on, expected_hash, operation, _commit_meta(message, author, {}))

    def _commit(self, on: str, expected_hash: str, operation: Any, meta: dict[str, Any]) -> str:
        response = self._calls.post(
            f"{ref_path(f'{on}@{expected_hash}')}/history/commit",
            {"commitMeta": meta, "operations": [operation]},
        )
        return str(response["targetBranch"]["hash"])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """pynessie's errors as ours."""
        from marshmallow import ValidationError
        from pynessie.error import NessieException

        try:
            yield
        except NessieException as error:
            code = get_error_code(error.status_code, error.error_code)
            message = error.server_message if error.server_message != "{}" else "no reason was given"
            raise NessieError(error.status_code, code, message) from error
        except OSError as error:  # what requests raises when nobody answers
            raise unreachable_error(self._uri, error) from error
        except (ValidationError, KeyError, TypeError) as error:
            raise not_nessie_error(self._uri) from error


def _commit_meta(message: str, author: str, properties: Mapping[str, str]) -> dict[str, Any]:
    return {"message": message, "authors": [author], "properties": dict(properties)}


def _reference(found: Any) -> Reference:  # pynessie is untyped
    kind: Literal["BRANCH", "TAG"] = "TAG" if type(found).__name__ == "Tag" else "BRANCH"
    return Reference(found.name, found.hash_, kind)


def _quote_cel(text: str) -> str:
    """A string literal of Nessie's filter language."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@cache
def _load_pynessie() -> None:
    with warnings.catch_warnings():
        # pynessie 0.67 declares its fields in marshmallow 3's old words; marshmallow is pinned below 4 for it.
        warnings.filterwarnings("ignore", message="The 'default' argument to fields is deprecated")
        importlib.import_module("pynessie")


def _pynessie_client(uri: str, token: str | None) -> Any:
    _load_pynessie()
    import confuse
    from pynessie import NessieClient

    # Nothing is read: neither NESSIE_* variables nor a file of the user's decides who is asked, and how.
    config = confuse.Configuration("nessie", read=False)
    config.set(
        {
            "endpoint": uri.removesuffix("/v2") + "/v1",
            "verify": True,
            "auth": {"type": "bearer" if token else "none", "token": token},
            "default_branch": "main",
        }
    )
    return NessieClient(config)
