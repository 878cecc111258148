"""A Delta table with UniForm, whose Iceberg metadata is made by PyIceberg the way Delta's converter leaves it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.builders.lake_tables import some_rows

PROPERTIES = {"delta.enableIcebergCompatV2": "true", "delta.universalFormat.enabledFormats": "iceberg"}


class UniformTable:
    """The table at `location`; commits and conversions are made one by one, as they are by Delta's own writers."""

    def __init__(self, location: Path, rows: pa.Table | None = None) -> None:
        from deltalake import write_deltalake
        from pyiceberg.catalog.memory import InMemoryCatalog

        content = some_rows() if rows is None else rows
        self.location, self.rows = location, content
        write_deltalake(location, content)
        self._enable()
        catalog = InMemoryCatalog("uniform", warehouse=location.parent.as_uri())
        catalog.create_namespace("lake")
        self.table: Any = catalog.create_table("lake.flights", content.schema, location=location.as_uri())

    def _enable(self) -> None:
        """Write the properties into the log: the library that makes it does not know them."""
        commit = self.location / "_delta_log" / f"{0:020}.json"
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "metaData" in action:
                action["metaData"]["configuration"] = PROPERTIES
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))

    @property
    def version(self) -> int:
        """The newest version of the log."""
        from deltalake import DeltaTable

        return DeltaTable(self.location).version()

    def append(self, rows: pa.Table) -> int:
        """One more commit; returns its version."""
        from deltalake import write_deltalake

        write_deltalake(self.location, rows, mode="append")
        return self.version

    def delete(self, predicate: str) -> int:
        """A commit that rewrites files without some rows; returns its version."""
        from deltalake import DeltaTable

        DeltaTable(self.location).delete(predicate)
        return self.version

    def convert(self, version: int | None = None) -> int:
        """Iceberg metadata of a version, the newest by default, in one commit; returns the snapshot's id."""
        from deltalake import DeltaTable

        version = self.version if version is None else version
        names = DeltaTable(self.location, version).file_uris()
        wanted = {f"file://{name}" for name in names}
        known = {task.file.file_path for task in self.table.scan().plan_files()}
        with self.table.transaction() as change:
            if known - wanted:
                with change.update_snapshot().overwrite() as update:
                    for task in self.table.scan().plan_files():
                        if task.file.file_path not in wanted:
                            update.delete_data_file(task.file)
            if wanted - known:
                change.add_files(sorted(wanted - known))
            change.set_properties({"delta-version": str(version), "delta-timestamp": "1"})
        found: int = self.table.current_snapshot().snapshot_id
        return found
