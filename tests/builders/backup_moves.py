"""An Iceberg table moved from one folder to another by copying its data and rewriting what names it."""

import gzip
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakeshare_pipelines.backup.stores import BackupStore, StoreAddress, open_store
from lakeshare_pipelines.backup.verify.rewriting import RewrittenTable, rewrite_table
from lakeshare_pipelines.errors import ObjectMissing
from lakeshare_server.locations import local_path
from lakeshare_server.tables.iceberg.avro import read_container


@dataclass
class Move:
    """From a folder of tables to another; each table's new root is `<to>/<name>`."""

    source: Path
    to: Path

    @property
    def target(self) -> BackupStore:
        return open_store(StoreAddress(url=str(self.to)))

    def rewritten(self, metadata_location: str, name: str = "flights", **options: Any) -> RewrittenTable:
        """Rewrite a table as one at `<to>/<name>`, with its data where `copy` puts it."""
        return rewrite_table(self.read, metadata_location, self.moved, self.target, name, **options)

    def copy(self) -> None:
        """Copy all below the source as it is."""
        shutil.copytree(self.source, self.to / "copied")

    def read(self, location: str) -> bytes:
        path = Path(local_path(location))
        if not path.exists():
            raise ObjectMissing(location)
        return path.read_bytes()

    def moved(self, location: str) -> str:
        path = local_path(location)
        assert path.startswith(f"{self.source}/"), f"{location} is none of the table's"
        return f"{self.to}/copied{path.removeprefix(str(self.source))}"

    def remove_source(self) -> None:
        """Take the original place away."""
        self.source.rename(self.source.with_name("gone"))

    def still_named(self, rewritten: RewrittenTable) -> list[str]:
        """The keys of what was written that still speak of the source."""
        return [key for key in rewritten.keys if str(self.source).encode() in self._plain(key)]

    def _plain(self, key: str) -> bytes:
        content = self.target.read(key)
        if ".gz." in key or key.endswith(".gz"):
            return gzip.decompress(content)
        if key.endswith(".avro"):
            return b"".join(block for _, block in read_container(content).blocks)
        return content
