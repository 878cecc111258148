"""A table on a branch of a Nessie catalog, told by Nessie's REST API v2.

Its metadata lists the snapshots of all branches it came through; which of them the branch showed, and when, is told by
the branch's own commits alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx

from lakeshare_server.errors import BadRequest, LakeshareError, Unavailable, Unserveable
from lakeshare_server.outbound import Service
from lakeshare_server.versions.iceberg_catalog import catalog_configuration
from lakeshare_server.versions.metadata_source import BranchState, Pointer

ANSWER_S = 20
PAGE = 200
# A look back over more commits than these is given up: what they showed is not told.
MOST_COMMITS = 10_000
ICEBERG = "ICEBERG_TABLE"
REFUSED = (401, 403)


class NessieTable:
    """One table of a Nessie catalog, on one branch."""

    root: str | None = None

    def __init__(self, name: str, identifier: tuple[str, ...], branch: str, service: Service) -> None:
        self._name, self._identifier, self._branch = name, identifier, branch
        self._service = service

    def current(self, known: Pointer | None) -> Pointer:
        """The metadata file that the branch's head has.

        Raises:
            BadRequest: the catalog is not configured.
            Unserveable: the branch or the table is not there, is no Iceberg table, or the catalog refuses us.
            Unavailable: it does not answer.
        """
        key = quote(".".join(self._identifier), safe="")
        told = self._get(f"/trees/{quote(self._branch, safe='')}/contents/{key}", {})
        with self._understood():
            content, commit = told["content"], str(told["effectiveReference"]["hash"])
            if content["type"] != ICEBERG:
                raise self._refusal(f"is no Iceberg table but a {content['type']}")
            location = str(content["metadataLocation"])
            return Pointer(location, location, commit)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """What the branch showed after a commit; nothing if the commit is none of the branch's any more."""
        if commit is None or commit == until.commit:
            return ()
        found: list[BranchState] = []
        with self._understood():
            for count, entry in enumerate(self._commits(str(until.commit))):
                if entry["commitMeta"]["hash"] == commit:
                    return found[::-1]
                if count >= MOST_COMMITS:
                    break
                found += self._states_of(entry)
        return ()

    def _commits(self, until: str) -> Iterator[dict[str, Any]]:
        """The branch's commits with what they did, the newest first."""
        path = f"/trees/{quote(self._branch, safe='')}@{until}/history"
        asked = {"fetch": "ALL", "max-records": str(PAGE)}
        while True:
            page = self._get(path, asked)
            yield from page["logEntries"]
            if not page.get("hasMore"):
                return
            asked = {**asked, "page-token": page["token"]}

    def _states_of(self, entry: dict[str, Any]) -> Iterator[BranchState]:
        meta = entry["commitMeta"]
        for operation in entry.get("operations") or ():
            content = operation.get("content") or {}
            is_ours = operation["key"]["elements"] == list(self._identifier)
            if is_ours and operation["type"] == "PUT" and content.get("type") == ICEBERG:
                at = datetime.fromisoformat(meta["commitTime"])
                yield BranchState(
                    meta["hash"],
                    int(at.timestamp() * 1000),
                    content["metadataLocation"],
                    int(content["snapshotId"]),
                )

    def _get(self, path: str, parameters: dict[str, str]) -> dict[str, Any]:
        configured = catalog_configuration(self._name)
        uri = str(configured.get("uri", "")).rstrip("/")
        if not uri.startswith(("http://", "https://")):
            hint = "Its uri in pyiceberg's configuration must be that of Nessie's API, like http://host:19120/api/v2."
            raise BadRequest("LOCATION", self._name, hint)
        token = configured.get("token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self._service.call(lambda: self._answer(uri + path, headers, parameters))

    def _answer(self, url: str, headers: dict[str, str], parameters: dict[str, str]) -> dict[str, Any]:
        try:
            with httpx.Client(timeout=ANSWER_S, headers=headers) as client:
                answer = client.get(url, params=parameters)
            if answer.is_success:
                told: dict[str, Any] = answer.json()
                return told
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise self._unreachable(type(error).__name__) from error
        raise self._refused(answer.status_code)

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._unreachable(f"it answers otherwise than Nessie, {type(error).__name__}") from error

    def _refused(self, status: int) -> LakeshareError:
        if status in REFUSED:
            return self._refusal(f"is refused to our token ({status})")
        if status == httpx.codes.NOT_FOUND:
            return self._refusal("is not there")
        return self._unreachable(f"status {status}")

    def _refusal(self, what: str) -> Unserveable:
        # All of the place in one word, which recipients are not told.
        return Unserveable(
            f"nessie:{self._name}/{'.'.join(self._identifier)}@{self._branch} {what}.",
            "Check table and branch, and uri and token in the catalog's configuration where the server runs.",
        )

    def _unreachable(self, why: str) -> Unavailable:
        return Unavailable(
            f"the Nessie catalog {self._name} cannot be asked ({why})",
            "Try again; its uri must be that of the API, like http://host:19120/api/v2.",
        )


class NessieNamespace(NessieTable):
    """A namespace of a Nessie catalog on one branch, for the names of its Iceberg tables."""

    def __init__(self, name: str, namespace: tuple[str, ...], branch: str, service: Service) -> None:
        super().__init__(name, (*namespace, "*"), branch, service)

    def tables(self) -> list[str]:
        """The names of the tables, without those of namespaces inside it.

        Raises:
            BadRequest, Unserveable, Unavailable: as `NessieTable.current`.
        """
        path = f"/trees/{quote(self._branch, safe='')}/entries"
        found: list[str] = []
        asked = {"max-records": str(PAGE)}
        while True:
            page = self._get(path, asked)
            with self._understood():
                for entry in page["entries"]:
                    *namespace, table = entry["name"]["elements"]
                    if entry["type"] == ICEBERG and tuple(namespace) == self._identifier[:-1]:
                        found.append(table)
                if not page.get("hasMore"):
                    return sorted(found)
                asked = {**asked, "page-token": page["token"]}
