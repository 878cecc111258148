"""Snapshots of the oldest tables of format version 1, which pyiceberg does not load."""

from pydantic import Field
from pyiceberg.table.snapshots import Snapshot


class OldestSnapshot(Snapshot):
    """A snapshot without a manifest list: it names its manifests itself (Iceberg spec, "Snapshots", `manifests`)."""

    manifest_list: str = Field(alias="manifest-list", default="")
    manifest_paths: list[str] = Field(alias="manifests")
