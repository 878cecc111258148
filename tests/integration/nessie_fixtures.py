"""A Nessie of a test's own, and tables put on its branches without Spark."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lakeshare_pipelines.errors import NessieError
from lakeshare_pipelines.nessie.client import Nessie, NessieEndpoint, nessie_api
from lakeshare_pipelines.nessie.server import ensure_nessie, stop_nessie
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.nessie import NessieApi


@dataclass(frozen=True)
class RunningNessie:
    """A server and a client in each role."""

    settings: LakeSettings
    endpoint: NessieEndpoint

    @property
    def writer(self) -> Nessie:
        return Nessie.connect(self.endpoint, "writer")

    @property
    def publisher(self) -> Nessie:
        return Nessie.connect(self.endpoint, "publisher")

    def main(self) -> str:
        """Where main is."""
        return self.writer.reference("main").hash

    def a_branch(self, at: str | None = None) -> str:
        """A new branch, from main's head unless said otherwise."""
        return self.writer.create_branch(f"wap-{uuid.uuid4().hex[:12]}", at or self.main()).name

    def commit(self, branch: str, snapshots: Mapping[str, int], role: str = "writer") -> str:
        """One commit that puts each named table at a snapshot; returns it."""
        token = self.endpoint.writer_token if role == "writer" else self.endpoint.publisher_token
        calls = nessie_api(self.endpoint.uri, token)
        operations = [
            {
                "type": "PUT",
                "key": {"elements": name.split(".")},
                "content": self._table(name, branch, snapshot),
            }
            for name, snapshot in snapshots.items()
        ]
        namespaces = {name.rsplit(".", 1)[0] for name in snapshots if "." in name}
        operations += [
            {"type": "PUT", "key": {"elements": [name]}, "content": {"type": "NAMESPACE", "elements": [name]}}
            for name in sorted(namespaces)
            if not self._has(calls, branch, name)
        ]
        head = self.writer.reference(branch).hash
        answer = calls.post(
            f"/trees/{branch}@{head}/history/commit",
            {"commitMeta": {"message": f"write {', '.join(snapshots)}"}, "operations": operations},
        )
        return str(answer["targetBranch"]["hash"])

    def snapshot(self, table: str, at: str = "main") -> int | None:
        """The snapshot of a table at a ref; None when it is not there."""
        content = self.writer.content(table, at)
        return None if content is None else content.snapshot_id

    def _table(self, name: str, branch: str, snapshot: int) -> dict[str, object]:
        content = self.writer.content(name, branch)
        return {
            "type": "ICEBERG_TABLE",
            **({"id": content.id} if content else {}),
            "metadataLocation": f"file:/warehouse/{name}/{snapshot}.metadata.json",
            "snapshotId": snapshot,
            "schemaId": 0,
            "specId": 0,
            "sortOrderId": 0,
        }

    @staticmethod
    def _has(calls: NessieApi, branch: str, name: str) -> bool:
        try:
            calls.get(f"/trees/{branch}/contents/{name}")
        except NessieError as error:
            if error.code == "CONTENT_NOT_FOUND":
                return False
            raise
        return True


@contextmanager
def a_running_nessie(folder: Path) -> Iterator[RunningNessie]:
    """A server with its state in `folder`, stopped at the end."""
    settings = LakeSettings(state_dir=folder)
    try:
        yield RunningNessie(settings, ensure_nessie(settings))
    finally:
        stop_nessie(settings)


def a_table() -> str:
    """A table name nobody used before."""
    return f"flights.t{uuid.uuid4().hex[:12]}"
