"""Where a followed Iceberg table's current metadata file is told: what each kind of place answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Pointer:
    """The metadata file that is current now; `mark` changes when the file at its place becomes another one.

    `commit` is the Nessie commit that was looked at, None of all other sources.
    """

    metadata_location: str
    mark: str
    commit: str | None = None


@dataclass(frozen=True)
class BranchState:
    """A state that a table was in on a Nessie branch: when, by which commit, and what that commit said of it."""

    commit: str
    at_ms: int
    metadata_location: str
    snapshot_id: int


class MetadataSource(Protocol):
    """One table's place. Errors are for the operator: they name places and catalogs.

    Everything raises Unserveable, StoreError or BadRequest for what lasts, Unavailable for what passes.
    """

    @property
    def root(self) -> str | None:
        """The folder that the table must say it is in; None where the source tells no folder."""
        ...

    def current(self, known: Pointer | None) -> Pointer:
        """The current metadata file; `known` is what the last look found, and makes this one cheaper."""
        ...

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """The states after a commit, oldest first; None where the metadata's own snapshot log tells them."""
        ...
