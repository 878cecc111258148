"""Iceberg metadata found in storage: the newest file of a table's folder, or one file that stays what it is.

Iceberg's spec leaves to catalogs which file is current. A Hadoop catalog numbers them (`v3.metadata.json`) and leaves a
hint; others write `00003-<uuid>.metadata.json` and keep the current name to themselves, so the highest number is taken
where it is one file's alone. A hint may name the file itself, as PyIceberg and DuckDB read it. Files of other names
have no order: without such a hint a folder with one of them is refused, and so is one with files of both kinds.
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
OF_HADOOP = re.compile(r"v([0-9]{1,20})(?:\.gz)?\.metadata\.json(?:\.gz)?")
OF_CATALOG = re.compile(r"([0-9]{1,20})-[\w-]{36}(?:\.gz)?\.metadata\.json(?:\.gz)?")
OF_HINT = re.compile(r"[\w.-]{1,250}")
# Names of metadata files without their endings.
STEM = re.compile(r"v[0-9]{1,20}|[0-9]{1,20}-[\w-]{36}")
# A hint that has a slash names a place.
PLACE_IN_HINT = re.compile(r"[!-~]{0,1000}/[!-~]{0,1000}")
# So many files are named in a refusal.
NAMED = 5
# Higher numbers are not in the order of their names, or followed by numbers that are not.
IN_ORDER_OF_NAMES = 90_000
# A catalog that takes over a table gives its first files the lowest numbers.
FIRST_OF_CATALOG = "0"
BEHIND_FIRST_OF_CATALOG = "0001"


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
        # The number in the hint from which the last look came to its file.
        self._hinted: int | None = None

    def current(self, known: Pointer | None) -> Pointer:
        """The newest metadata file.

        Raises:
            TableFilesMissing: there is none.
            Unserveable: it cannot be told which one it is.
        """
        hinted, self._hinted = self._hinted, None
        found = self._found(known, hinted)
        if found is None:
            raise TableFilesMissing(str(self.root), "there is no Iceberg metadata in its folder")
        return _pointer(found)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """None: the metadata tells them."""
        return None

    def _found(self, known: Pointer | None, hinted_before: int | None) -> StoredObject | None:
        hint = self._hint()
        number = int(hint) if hint is not None and hint.isdigit() else None
        if hint is not None and number is None and (named := self._named(hint)) is not None:
            return named
        kept = None if known is None else self._kept(known)
        if number is not None:
            found = self._newest_of_hadoop(number, kept if number == hinted_before else None)
            if found is not None:
                self._require_no_catalog(is_first_look=kept is None or hinted_before is None)
                self._hinted = number
                return found
        return self._listed(0 if kept is None else self._number_in_order(kept), number)

    def _hint(self) -> str | None:
        """What the hint says: a number, or the name of a file with or without its ending.

        Raises:
            Unserveable: it names a place.
        """
        try:
            hint = self._stores.read(f"{self._folder}/{HINT}").strip()
        except StoreMissing:
            return None
        text = hint.decode("ascii", "replace")
        if PLACE_IN_HINT.fullmatch(text):
            raise self._unclear(f"a hint that names {text}, which is no file of its folder")
        return text if OF_HINT.fullmatch(text) else None

    def _named(self, hint: str) -> StoredObject | None:
        """The file that the hint names; None when it names none.

        Raises:
            Unserveable: it is not there.
        """
        is_whole = is_metadata_file(hint)
        found = self._stores.head(f"{self._folder}/{hint}") if is_whole else self._with_ending(hint)
        if found is None and (is_whole or STEM.fullmatch(hint)):
            raise self._unclear(f"a hint that names {hint}, which is not there")
        return found

    def _kept(self, known: Pointer) -> StoredObject | None:
        """The file of an earlier look; None when it is not what it was."""
        here = self._stores.head(known.metadata_location)
        return here if here is not None and _pointer(here) == known else None

    def _number_in_order(self, file: StoredObject) -> int:
        """The number of a file whose followers all have names behind its own; 0 for other files."""
        number = self._number(file, OF_CATALOG)
        return number if number < IN_ORDER_OF_NAMES else 0

    def _number(self, file: StoredObject, of_kind: re.Pattern[str]) -> int:
        """The number in a file's name; 0 where the name is of another kind."""
        found = of_kind.fullmatch(self._name(file.location))
        return 0 if found is None else int(found[1])

    def _newest_of_hadoop(self, number: int, kept: StoredObject | None) -> StoredObject | None:
        """The file of this number or of the last of those that follow it without a gap: hints may lag behind.

        `kept` is one of them that the same hint has led to before.
        """
        newest = None
        if kept is not None:
            newest, number = kept, self._number(kept, OF_HADOOP) + 1
        while (found := self._with_ending(f"v{number}")) is not None:
            newest, number = found, number + 1
        return newest

    def _with_ending(self, stem: str) -> StoredObject | None:
        """The metadata file of this name without an ending, as Iceberg's Java classes look for it."""
        names = (f"{self._folder}/{stem}{ending}" for ending in (*ENDINGS, OLD_ENDING))
        return next((found for name in names if (found := self._head(name)) is not None), None)

    def _require_no_catalog(self, *, is_first_look: bool) -> None:
        """Refuse a hint's file where a catalog writes, too: what takes over a table leaves its old hint behind.

        Later looks go through the first names only.
        """
        after = f"{self._folder}/{FIRST_OF_CATALOG}"
        for file in self._stores.list(self._folder, after):
            name = self._name(file.location)
            if name > BEHIND_FIRST_OF_CATALOG and not is_first_look:
                break
            if OF_CATALOG.fullmatch(name):
                raise self._unclear(f"a hint that gives a number, and metadata files of a catalog ({name})")

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
        after = f"{self._folder}/{from_number:05d}-" if from_number else None
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
