"""Temporary credentials for a folder: what a recipient with directory access reads a table with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakeshare_server.stores import Place


@dataclass(frozen=True)
class TemporaryCredentials:
    """For reading below `location` and nothing else; `kind` and `fields` are named as on the wire."""

    location: str
    kind: str
    fields: Mapping[str, str] = field(repr=False)
    expires_at_ms: int


class Vendor(Protocol):
    """Issues temporary credentials of one kind of store."""

    def refusal(self, place: Place) -> str | None:
        """Why none can be issued for this folder, as far as can be told without asking for some.

        Raises:
            Unavailable: what tells is not there now.
        """
        ...

    def vend(self, place: Place, life_s: int, now_s: int) -> TemporaryCredentials:
        """Credentials that read below the folder.

        Raises:
            Unserveable: the store will not issue them.
            Unavailable: it does not now.
        """
        ...
