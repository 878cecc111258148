"""Directory access: which recipients may read a table's folder with credentials of their own, and why others may not.

Credentials open everything under the table's prefix, so what URLs keep apart must not matter there: history, files that
were never published, files elsewhere.
"""

from collections.abc import Collection
from typing import Protocol

from lakeshare_server.access.view import TableView
from lakeshare_server.catalog import TableEntry
from lakeshare_server.errors import LakeshareError, Unserveable
from lakeshare_server.protocol.heads import URLS_ONLY, Access
from lakeshare_server.signing import Signers


class Folder(Protocol):
    """Where a table is, the stores that its files are in, and how many of them lie outside of its folder."""

    @property
    def location(self) -> str:
        """The table's folder."""
        ...

    @property
    def roots(self) -> Collection[str]:
        """The stores of all files, or the folders of local ones outside of the table's own."""
        ...

    @property
    def elsewhere(self) -> int:
        """The number of files outside of the folder."""
        ...


def directory_refusal(entry: TableEntry, folder: Folder, signers: Signers) -> str | None:
    """Why the table's folder is not handed out; None when it is.

    Raises:
        Unavailable: what tells is not there now.
    """
    if not entry.history:
        return "its history is not shared, and the folder holds all of it"
    if entry.start_version:
        return f"its versions before {entry.start_version} are not shared, and the folder may hold them"
    if entry.rule is not None:
        return "some of its rows are not shared, and the folder holds all of them"
    if entry.publication is not None:
        return f"its versions after {entry.publication} are not shared, and the folder may hold them"
    if not entry.directory_access:
        return (
            "files that were never published may lie in the folder; allow it with "
            f"`lakeshare table directory-access {entry.path} --allow`"
        )
    if folder.elsewhere:
        return f"{folder.elsewhere} of its files lie outside of the folder"
    return signers.can_vend(folder.location)


def folder_refusal(view: TableView, folder: Folder, signers: Signers) -> str | None:
    """The same for one recipient, whose grants may be restricted.

    Raises:
        Unavailable: what tells is not there now.
    """
    if view.is_restricted:
        return "some of its rows are not shared with you, and the folder holds all of them"
    return directory_refusal(view.entry, folder, signers)


def access_of(view: TableView, signers: Signers) -> Access:
    """What listings and metadata say of directory access; nothing when the folder is not handed out."""
    if not view.entry.directory_access or view.is_restricted:
        return URLS_ONLY
    try:
        header = view.index(view.latest()).header
        refusal = directory_refusal(view.entry, header, signers)
    except LakeshareError:
        # A listing is not to fail for one table, or for credentials that nobody asked for: whoever does is told.
        return URLS_ONLY
    return URLS_ONLY if refusal else Access(header.location)


def require_directory_access(view: TableView, signers: Signers) -> str:
    """The folder of a table that hands it out.

    Raises:
        Unserveable: says why it does not.
        Unavailable: that cannot be told now.
    """
    header = view.versions.index(view.latest()).header
    refusal = folder_refusal(view, header, signers)
    if refusal is not None:
        raise Unserveable(
            f"{view.entry.path} is not served by directory access: {refusal}.", "Query it for URLs."
        )
    return header.location
