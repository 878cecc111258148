"""The Nessie client: refs and contents through pynessie, merges and history through the v2 API.

pynessie cannot give a merge its metadata, run it dry, or page through a history; `calls.py` does that.
"""

import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any, Literal

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.calls import Calls, code_of, not_nessie, ref_path, unreachable
from lakeshare_pipelines.nessie.identity import Role
from lakeshare_pipelines.nessie.records import (
    Branch,
    Commit,
    Merge,
    Reference,
    TableContent,
    branch_from,
    commit_from,
    content_from,
)
from lakeshare_pipelines.nessie.server import NessieEndpoint

__all__ = ["Branch", "Commit", "Merge", "Nessie", "Reference", "TableContent"]

NOT_THERE = "CONTENT_NOT_FOUND"
TABLE = "ICEBERG_TABLE"


class Nessie:
    """One server, spoken to in one role. A method that is refused or not answered raises NessieError."""

    def __init__(self, uri: str, token: str | None) -> None:
        self._uri = uri
        self._calls = Calls(uri, token)
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
            "/trees", "references", {"filter": f"ref.name.startsWith({_cel(prefix)})", "fetch": "ALL"}
        )
        return [
            branch_from(reference)
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
            if error.code == NOT_THERE:
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
                yield ".".join(entry["name"]["elements"]), content_from(entry["content"])

    def log(self, ref: str) -> Iterator[dict[str, Any]]:
        """Commits of `ref`, newest first, with their operations, as Nessie tells them (API v2, LogEntry)."""
        return self._calls.pages(f"{ref_path(ref)}/history", "logEntries", {"fetch": "ALL"})

    def history(self, ref: str, limit: int | None = None) -> Iterator[Commit]:
        """Commits of `ref` (`branch` or `branch@hash`), newest first; pages are fetched as they are consumed."""
        entries = self._calls.pages(f"{ref_path(ref)}/history", "logEntries", {})
        return (commit_from(entry) for entry in islice(entries, limit))

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
        answer = self._calls.post(
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
        if not answer["wasSuccessful"]:
            raise NessieError(
                409, "REFERENCE_CONFLICT", f"{branch} does not merge onto {onto}: {answer['details']}"
            )
        return Merge(answer["wasApplied"], answer["resultantTargetHash"] or answer["effectiveTargetHash"])

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
        answer = self._calls.post(
            f"{ref_path(f'{on}@{expected_hash}')}/history/commit",
            {"commitMeta": meta, "operations": [operation]},
        )
        return str(answer["targetBranch"]["hash"])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """pynessie's errors as ours."""
        from marshmallow import ValidationError
        from pynessie.error import NessieException

        try:
            yield
        except NessieException as error:
            code = code_of(error.status_code, error.error_code)
            said = error.server_message if error.server_message != "{}" else "no reason was given"
            raise NessieError(error.status_code, code, said) from error
        except OSError as error:  # what requests raises when nobody answers
            raise unreachable(self._uri, error) from error
        except (ValidationError, KeyError, TypeError) as error:
            raise not_nessie(self._uri) from error


def _commit_meta(message: str, author: str, properties: Mapping[str, str]) -> dict[str, Any]:
    return {"message": message, "authors": [author], "properties": dict(properties)}


def _reference(found: Any) -> Reference:  # pynessie is untyped
    kind: Literal["BRANCH", "TAG"] = "TAG" if type(found).__name__ == "Tag" else "BRANCH"
    return Reference(found.name, found.hash_, kind)


def _cel(text: str) -> str:
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
