"""Iceberg metadata found in storage: the newest file of a table's folder, or one file that stays what it is.

Iceberg's spec leaves to catalogs which file is current. A Hadoop catalog numbers them (`v3.metadata.json`) and leaves a
hint; others write `00003-<uuid>.metadata.json` and keep the current name to themselves, so the highest number is taken
where it is one file's alone. A hint may name the file itself, as PyIceberg and DuckDB read it. Files of other names
have no order: without such a hint a folder with one of them is refused.
"""

import re
from collections.abc import Iterator, Sequence

from lakeshare_server.errors import StoreDenied, StoreMissing, TableFilesMissing, Unserveable
from lakeshare_server.stores import StoredObject, Stores
from lakeshare_server.versions.metadata_source import BranchState, Pointer

METADATA = "metadata"
HINT = "version-hint.text"
ENDINGS = (".metadata.json", ".gz.metadata.json")
# Writers of the first years put the codec behind.
OLD_ENDING = ".metadata.json.gz"
# Some catalogs take times in nanoseconds for numbers.
OF_HADOOP = re.compile(r"v(\d{1,20})(?:\.\w+)?\.metadata\.json(?:\.gz)?")
OF_CATALOG = re.compile(r"(\d{1,20})-[\w-]{36}(?:\.\w+)?\.metadata\.json(?:\.gz)?")
OF_HINT = re.compile(r"[\w.-]{1,250}")
# So many files are named in a refusal.
NAMED = 5
# Numbers of more digits are not in the order of their names any more.
DIGITS = 5


def is_metadata_file(location: str) -> bool:
    """Whether a location is of one metadata file, not of a folder."""
    return location.endswith((*ENDINGS, OLD_ENDING))


class FixedMetadata:
    """One metadata file."""

    root: str | None = None

    def __init__(self, stores: Stores, location: str) -> None:
        self._stores, self._location = stores, location

    def current(self, known: Pointer | None) -> Pointer:
        """The file as it is now."""
        found = self._stores.head(self._location)
        if found is None:
            raise StoreMissing(self._location)
        return _pointer(found)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """None: the file tells them."""
        return None


class MetadataFolder:
    """The `metadata` folder of a table."""

    def __init__(self, stores: Stores, root: str) -> None:
        self._stores = stores
        self.root: str | None = root.rstrip("/")
        self._folder = f"{self.root}/{METADATA}"
        # Whether the hint named the file that was found; None before the first look.
        self._is_named: bool | None = None

    def current(self, known: Pointer | None) -> Pointer:
        """The newest metadata file.

        Raises:
            TableFilesMissing: there is none.
            Unserveable: it cannot be told which one it is.
        """
        found = self._found_after(known) if known else self._found()
        if found is None:
            raise TableFilesMissing(str(self.root), "there is no Iceberg metadata in its folder")
        return _pointer(found)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """None: the metadata tells them."""
        return None

    def _found_after(self, known: Pointer) -> StoredObject | None:
        """The newest file now, when the newest file of before is still what it was."""
        if self._is_named is not False:
            return self._found()
        here = self._stores.head(known.metadata_location)
        if here is None or _pointer(here) != known:
            return self._found()
        name = self._name(known.metadata_location)
        numbered = OF_HADOOP.fullmatch(name)
        if numbered is not None:
            return self._newest_of_hadoop(int(numbered[1]) + 1) or here
        number = int(name.partition("-")[0])
        return self._listed(number if len(str(number + 1)) <= DIGITS else 0) or here

    def _found(self) -> StoredObject | None:
        hint = self._hint()
        named = None if hint is None or hint.isdigit() else self._named(hint)
        self._is_named = named is not None
        if named is not None:
            return named
        number = int(hint) if hint is not None and hint.isdigit() else None
        found = None if number is None else self._newest_of_hadoop(number)
        return found or self._listed(0, number)

    def _hint(self) -> str | None:
        """What the hint says: a number, or the name of a file with or without its ending."""
        try:
            hint = self._stores.read(f"{self._folder}/{HINT}").strip()
        except StoreMissing:
            return None
        text = hint.decode("ascii", "replace")
        return text if OF_HINT.fullmatch(text) else None

    def _named(self, hint: str) -> StoredObject | None:
        """The file that the hint names; None when it names none.

        Raises:
            Unserveable: it is not there.
        """
        if not is_metadata_file(hint):
            return self._stores.head(f"{self._folder}/{hint}{ENDINGS[0]}")
        found = self._stores.head(f"{self._folder}/{hint}")
        if found is None:
            raise self._unclear(f"a hint that names {hint}, which is not there")
        return found

    def _newest_of_hadoop(self, number: int) -> StoredObject | None:
        """The file of this number or of the last of those that follow it without a gap: hints may lag behind."""
        newest = None
        while (found := self._of_hadoop(number)) is not None:
            newest, number = found, number + 1
        return newest

    def _of_hadoop(self, number: int) -> StoredObject | None:
        names = (f"{self._folder}/v{number}{ending}" for ending in (*ENDINGS, OLD_ENDING))
        return next((found for name in names if (found := self._head(name)) is not None), None)

    def _head(self, location: str) -> StoredObject | None:
        """The file at a location; None when there is none."""
        try:
            return self._stores.head(location)
        except StoreDenied:
            # Stores that know Iceberg (SeaweedFS's table buckets) refuse names that they would not write.
            folder, _, name = location.rpartition("/")
            after = f"{folder}/{name.partition('.')[0]}."
            if any(file.location == location for file in self._stores.list(folder, after)):
                raise
            return None

    def _listed(self, from_number: int, hinted: int | None = None) -> StoredObject | None:
        numbered: list[tuple[int, bool, StoredObject]] = []
        others: list[str] = []
        for name, file in self._metadata_files(from_number):
            of_hadoop, of_catalog = OF_HADOOP.fullmatch(name), OF_CATALOG.fullmatch(name)
            found = of_hadoop or of_catalog
            if found is None:
                others.append(name)
            else:
                numbered.append((int(found[1]), of_hadoop is not None, file))
        if others:
            names = ", ".join(sorted(others)[:NAMED]) + (", …" if len(others) > NAMED else "")
            raise self._unclear(f"metadata files whose names have no order ({names})")
        if not numbered:
            return None
        if len({is_hadoop for _, is_hadoop, _ in numbered}) > 1:
            raise self._unclear("metadata files of a Hadoop catalog and of another one")
        highest = max(number for number, _, _ in numbered)
        if hinted is not None and highest < hinted:
            raise self._unclear(f"metadata files up to number {highest} and a hint that says {hinted}")
        newest = [file for number, _, file in numbered if number == highest]
        if len(newest) > 1:
            raise self._unclear(f"{len(newest)} metadata files of number {highest}")
        return newest[0]

    def _metadata_files(self, from_number: int) -> Iterator[tuple[str, StoredObject]]:
        """Those of any name, less those of lower numbers."""
        after = f"{self._folder}/{from_number:0{DIGITS}d}-" if from_number else None
        for file in self._stores.list(self._folder, after):
            name = self._name(file.location)
            # Checksums of Hadoop's file system are hidden files, which are nobody's metadata.
            if is_metadata_file(name) and "/" not in name and not name.startswith("."):
                yield name, file

    def _name(self, location: str) -> str:
        return location[len(self._stores.place(f"{self._folder}/").location) :]

    def _unclear(self, what: str) -> Unserveable:
        return Unserveable(
            f"{self.root} has {what}, so its newest state is not known.",
            "Follow the table through its catalog (iceberg:CATALOG/NAMESPACE.TABLE), or one metadata file of it.",
        )


def _pointer(file: StoredObject) -> Pointer:
    return Pointer(file.location, f"{file.etag or file.modified_ms} {file.size_bytes}")
