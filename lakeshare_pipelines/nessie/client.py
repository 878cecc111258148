"""The Nessie client: the v2 API over httpx; pynessie creates and deletes branches. Keys, tokens and rules of access."""

import base64
import importlib
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import datetime
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

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
from lakeshare_server.nessie import (
    CONTENT_FIELDS,
    ICEBERG_TABLE,
    TIMEOUT_S,
    NessieApi,
    TableContent,
    get_error_code,
    innermost_cause,
    ref_path,
)
from lakeshare_server.storage.stores import write_file


def nessie_api(uri: str, token: str | None, timeout_s: float = TIMEOUT_S) -> NessieApi:
    """Returns the API of one server; every failure is a NessieError."""

    def make_error(status: int, code: str, message: str) -> NessieError:
        if code == "UNREACHABLE":
            return unreachable_error(uri, message)
        if code == "NOT_NESSIE":
            message = f"{uri}: {message}. Check LAKESHARE_NESSIE_URI"
        return NessieError(status, code, message)

    return NessieApi(uri, token, make_error, timeout_s=timeout_s)


def unreachable_error(uri: str, cause: str) -> NessieError:
    message = (
        f"{uri} does not answer ({cause}). `lakeshare doctor` shows whether Nessie runs; the embedded one is started "
        "again by the next run"
    )
    return NessieError(0, "UNREACHABLE", message)


@dataclass(frozen=True)
class NessieEndpoint:
    """Address of Nessie and this process's tokens; None where Nessie needs none."""

    uri: str
    writer_token: str | None
    publisher_token: str | None


@dataclass(frozen=True)
class Reference:
    """A branch or a tag; `committed_at` is that of a branch in a list, None without a commit."""

    name: str
    hash: str
    committed_at: datetime | None = None


@dataclass(frozen=True)
class Commit:
    hash: str
    message: str
    properties: Mapping[str, str]
    committed_at: datetime
    parent: str


@dataclass(frozen=True)
class Merge:
    """The result of a merge; `head` is the target's commit after it."""

    applied: bool
    head: str


def parse_commit(entry: Mapping[str, Any]) -> Commit:
    meta = entry["commitMeta"]
    return Commit(
        hash=meta["hash"],
        message=meta["message"],
        # A property is a list of values on the wire; those of lakeshare have one.
        properties={name: values[0] for name, values in meta.get("allProperties", {}).items()},
        committed_at=datetime.fromisoformat(meta["commitTime"]),
        parent=meta["parentCommitHashes"][0],
    )


Role = Literal["writer", "publisher"]
AUTHOR = "lakeshare"

TOKEN_LIFE_S = 24 * 3600
KEY_BITS = 2048

READ = ("VIEW_REFERENCE", "READ_ENTRIES", "LIST_COMMIT_LOG", "READ_CONTENT_KEY", "READ_ENTITY_VALUE")
WRITE = (
    *("CREATE_REFERENCE", "DELETE_REFERENCE", "COMMIT_CHANGE_AGAINST_REFERENCE"),
    *("CREATE_ENTITY", "UPDATE_ENTITY", "DELETE_ENTITY"),
)
RULES = {
    "read": f"op in {list(READ)}",
    "branches": f"role=='writer' && ref!='main' && op in {list(WRITE)}",
    "publish": "role=='publisher'",
}


def load_signing_key(path: Path) -> rsa.RSAPrivateKey:
    """Loads the key at `path`, or creates one; the caller holds the folder's lock while the file may be missing."""
    if not path.exists():
        created = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
        content = created.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_file(path, content, if_absent=False, mode=0o600)
    try:
        key: object = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        message = f"{path} is no RSA key. Remove it, and a new one is made when Nessie starts next"
        raise NessieError(0, "BAD_KEY", message)
    return key


def format_public_key(key: rsa.RSAPrivateKey) -> str:
    """Returns the public key as Quarkus expects it: base64 of the DER, without PEM lines."""
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


def sign_token(key: rsa.RSAPrivateKey, role: Role) -> str:
    now = int(time.time())
    # `upn` is `role` in Nessie's rules; its `roles` are the groups.
    identity = {"iss": "lakeshare", "sub": role, "upn": role, "groups": [role]}
    return jwt.encode({**identity, "iat": now, "exp": now + TOKEN_LIFE_S}, key, algorithm="RS256")


class Nessie:
    """A client of one server in one role. Every method raises NessieError."""

    def __init__(self, uri: str, token: str | None) -> None:
        self._uri, self._token = uri, token
        self._api = nessie_api(uri, token)

    @classmethod
    def connect(cls, endpoint: NessieEndpoint, role: Role) -> "Nessie":
        """Returns a client in `role`; sends nothing."""
        return cls(endpoint.uri, endpoint.writer_token if role == "writer" else endpoint.publisher_token)

    def reference(self, name: str) -> Reference:
        found = self._api.get(ref_path(name))["reference"]
        return Reference(found["name"], found["hash"])

    def references(self) -> list[Reference]:
        """Returns all branches and tags."""
        found = self._api.pages("/trees", "references", {})
        return [Reference(each["name"], each["hash"]) for each in found]

    def branches(self, prefix: str = "") -> list[Reference]:
        """Returns the branches whose names start with `prefix`, without main."""
        literal = prefix.replace("\\", "\\\\").replace("'", "\\'")
        selection = {"filter": f"ref.name.startsWith('{literal}')", "fetch": "ALL"}
        branches = []
        for each in self._api.pages("/trees", "references", selection):
            if each["type"] == "BRANCH" and each["name"] != "main":
                head = (each.get("metadata") or {}).get("commitMetaOfHEAD")
                committed_at = datetime.fromisoformat(head["commitTime"]) if head else None
                branches.append(Reference(each["name"], each["hash"], committed_at))
        return branches

    def create_branch(self, name: str, at: str) -> Reference:
        """Creates a branch at the commit `at`, which must be one of main's."""
        with self._translate_errors():
            return Reference(name, self._pynessie.create_branch(name, "main", at).hash_)

    def delete_branch(self, name: str, expected_hash: str) -> None:
        """Deletes a branch if it is at `expected_hash`."""
        with self._translate_errors():
            self._pynessie.delete_branch(name, expected_hash)

    def content(self, table: str, at: str) -> TableContent | None:
        """Returns the table's state at `at` (`branch` or `branch@hash`), None if there is no such table."""
        key = {"elements": table.split(".")}
        contents = self._api.post(f"{ref_path(at)}/contents", {"requestedKeys": [key]})["contents"]
        found = [entry["content"] for entry in contents if entry["content"]["type"] == ICEBERG_TABLE]
        return TableContent.parse(found[0]) if found else None

    def tables(self, at: str) -> list[str]:
        """Returns the sorted names of all Iceberg tables at `branch` or `branch@hash`."""
        entries = self._api.pages(f"{ref_path(at)}/entries", "entries", {})
        return sorted(
            ".".join(entry["name"]["elements"]) for entry in entries if entry["type"] == ICEBERG_TABLE
        )

    def contents(self, at: str) -> Iterator[tuple[str, TableContent]]:
        """Yields all Iceberg tables at `branch` or `branch@hash` with their states, unordered."""
        for entry in self._api.pages(f"{ref_path(at)}/entries", "entries", {"content": "true"}):
            if entry["type"] == ICEBERG_TABLE:
                yield ".".join(entry["name"]["elements"]), TableContent.parse(entry["content"])

    def log(self, ref: str) -> Iterator[dict[str, Any]]:
        """Yields the commits of `ref`, newest first, with their operations (API v2, LogEntry)."""
        return self._api.pages(f"{ref_path(ref)}/history", "logEntries", {"fetch": "ALL"})

    def history(self, ref: str, limit: int | None = None) -> Iterator[Commit]:
        """Yields the commits of `ref` (`branch` or `branch@hash`), newest first."""
        entries = self._api.pages(f"{ref_path(ref)}/history", "logEntries", {})
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
    ) -> Merge:
        """Merges everything up to `from_hash` into `onto`, all tables in one commit with `properties`.

        Later commits of the branch are not merged. `onto_hash` is a lower bound, not a compare-and-swap: later commits
        are accepted if they changed other tables.

        Raises:
            NessieError: `REFERENCE_CONFLICT` when a table changed on both sides.
        """
        response = self._api.post(
            f"{ref_path(f'{onto}@{onto_hash}')}/history/merge",
            {
                "fromRefName": branch,
                "fromHash": from_hash,
                "commitMeta": _commit_meta(message, author, properties),
                "defaultKeyMergeMode": "NORMAL",
                "isReturnConflictAsResult": False,
            },
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
    ) -> str:
        """Sets the table's state on the branch `on` in one commit, and returns that commit."""
        fields = dict(zip(CONTENT_FIELDS, astuple(content), strict=True))
        operation = {
            "type": "PUT",
            "key": {"elements": table.split(".")},
            "content": {"type": ICEBERG_TABLE, **fields, "id": content.id or None},
        }
        return self._commit(on, expected_hash, operation, _commit_meta(message, AUTHOR, properties))

    def drop_table(self, table: str, on: str, expected_hash: str, *, message: str) -> str:
        """Removes the table from the branch `on` in one commit, and returns that commit; its files stay."""
        operation = {"type": "DELETE", "key": {"elements": table.split(".")}}
        return self._commit(on, expected_hash, operation, _commit_meta(message, AUTHOR, {}))

    def _commit(self, on: str, expected_hash: str, operation: Any, meta: dict[str, Any]) -> str:
        response = self._api.post(
            f"{ref_path(f'{on}@{expected_hash}')}/history/commit",
            {"commitMeta": meta, "operations": [operation]},
        )
        return str(response["targetBranch"]["hash"])

    @cached_property
    def _pynessie(self) -> Any:  # pynessie is untyped
        import confuse

        # Neither NESSIE_* variables nor the user's file of pynessie apply.
        config = confuse.Configuration("nessie", read=False)
        auth = {"type": "bearer" if self._token else "none", "token": self._token}
        endpoint = self._uri.removesuffix("/v2") + "/v1"
        config.set({"endpoint": endpoint, "verify": True, "auth": auth, "default_branch": "main"})
        return _load_pynessie()(config)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turns pynessie's errors into NessieErrors."""
        _load_pynessie()
        from pynessie.error import NessieException

        try:
            yield
        except NessieException as error:
            code = get_error_code(error.status_code, error.error_code)
            message = error.server_message if error.server_message != "{}" else "no reason was given"
            raise NessieError(error.status_code, code, message) from error
        except OSError as error:  # of requests, when there is no response
            raise unreachable_error(self._uri, innermost_cause(error)) from error


def _commit_meta(message: str, author: str, properties: Mapping[str, str]) -> dict[str, Any]:
    return {"message": message, "authors": [author], "properties": dict(properties)}


@cache
def _load_pynessie() -> Any:
    with warnings.catch_warnings():
        # pynessie 0.67 uses deprecated arguments of marshmallow 3, which is pinned below 4 for it.
        warnings.filterwarnings("ignore", message="The 'default' argument to fields is deprecated")
        return importlib.import_module("pynessie").NessieClient
