"""The files behind Iceberg snapshots: manifest lists, manifests, and what they name."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from lakeshare_server.errors import Unserveable
from lakeshare_server.stores import Stores

if TYPE_CHECKING:
    from pyiceberg.io import InputFile
    from pyiceberg.manifest import ManifestEntry, ManifestFile


def manifests_of(snapshot: Mapping[str, Any], stores: Stores) -> "Sequence[ManifestFile]":
    """The manifests of a snapshot, as its entry in the table's metadata says it.

    Raises:
        Unserveable: it has no manifest list, as the oldest tables of format version 1.
        StoreError, Unavailable: the list cannot be read, or not now.
        ValueError: it is not whole.
    """
    from pyiceberg.manifest import read_manifest_list

    location = snapshot.get("manifest-list")
    if location is None:
        raise Unserveable(
            "A snapshot of the table has no manifest list.",
            "Provider: write to the table and publish it again.",
        )
    return list(read_manifest_list(in_memory(location, stores)))


def in_memory(location: str, stores: Stores) -> "InputFile":
    """A file of a store for pyiceberg's readers, read at once: manifests are small, and asked for once."""
    from pyiceberg.io import InputFile

    class InMemory(InputFile):
        def __len__(self) -> int:
            return len(content)

        def exists(self) -> bool:
            return True

        def open(self, seekable: bool = True) -> BytesIO:
            return BytesIO(content)

    content = stores.read(location)
    return InMemory(location)


def readable_files(snapshot: Mapping[str, Any], stores: Stores) -> frozenset[str]:
    """Locations of the files of a snapshot beside its data: manifest list, manifests, and files of deletes.

    Raises:
        Unserveable, StoreError, Unavailable, ValueError: as `manifests_of`.
    """
    from pyiceberg.manifest import ManifestContent

    manifests = manifests_of(snapshot, stores)
    found = {snapshot["manifest-list"], *(manifest.manifest_path for manifest in manifests)}
    for manifest in manifests:
        if manifest.content == ManifestContent.DELETES:
            found |= {entry.data_file.file_path for entry in _entries(manifest, stores)}
    return frozenset(stores.place(location).location for location in found)


def _entries(manifest: "ManifestFile", stores: Stores) -> "list[ManifestEntry]":
    from pyiceberg.io import FileIO, InputFile, OutputFile

    class FromStores(FileIO):
        def new_input(self, location: str) -> InputFile:
            return in_memory(location, stores)

        def new_output(self, location: str) -> OutputFile:
            raise NotImplementedError

        def delete(self, location: str | InputFile | OutputFile) -> None:
            raise NotImplementedError

    return manifest.fetch_manifest_entry(FromStores())
