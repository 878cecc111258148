"""Paging of listings: opaque tokens that say after which key a page begins, and of which listing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.parameters import whole_number
from lakeshare_server.protocol.seals import Seals

HINT = "Pass on the nextPageToken of the page before, unchanged."


class Keyed(Protocol):
    """An entry of a listing."""

    @property
    def key(self) -> int: ...


Entry = TypeVar("Entry", bound=Keyed)


@dataclass(frozen=True)
class PageRequest:
    """`maxResults` and `pageToken` as they were sent."""

    max_results: str | None
    page_token: str | None


class Pager:
    """Cuts listings into pages; a token of one listing is refused by any other."""

    def __init__(self, key: bytes, page_size: int) -> None:
        self._seals, self.page_size = Seals(key, "listing page v1"), page_size

    def page(
        self, listing: str, request: PageRequest, read: Callable[[int, int], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """The page's entries and the next page's token; `read(after, limit)` gets the entries.

        Raises:
            BadRequest: `maxResults` is no number from 0 to the page size, or the token is not one of ours.
            NotFound: as `read`, whatever is wrong with the request.
        """
        try:
            size = self._size(request.max_results)
            after = self._after(listing, request.page_token) if request.page_token else 0
        except BadRequest:
            # Whoever may not see the listing is told that first.
            read(0, 1)
            raise
        entries = read(after, size + 1)
        if len(entries) <= size:
            return entries, None
        page = entries[:size]
        return page, self._token(listing, page[-1].key if page else after)

    def _size(self, max_results: str | None) -> int:
        if max_results is None:
            return self.page_size
        return min(whole_number("maxResults", max_results, low=0, high=500), self.page_size)

    def _token(self, listing: str, after: int) -> str:
        return self._seals.sealed({"listing": listing, "after": after})

    def _after(self, listing: str, token: str) -> int:
        said = self._seals.opened(token)
        if said is None or said["listing"] != listing:
            raise BadRequest("pageToken", token, HINT)
        return int(said["after"])
