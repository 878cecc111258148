"""Paging of listings by sealed tokens: after which key a page begins, of which listing, for whom."""

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


@dataclass(frozen=True)
class _PageToken:
    """What a token holds; `after` is a key of the catalog, which clients do not see."""

    holder: str
    listing: str
    after: int


class Pager:
    """Cuts listings into pages; a token is refused by any other listing, and from anybody but its holder."""

    def __init__(self, key: bytes, page_size: int) -> None:
        self._seals, self.page_size = Seals(key, "listing page v2"), page_size

    def page(
        self, holder: str, listing: str, request: PageRequest, read: Callable[[int, int], Sequence[Entry]]
    ) -> tuple[Sequence[Entry], str | None]:
        """The page's entries and the next page's token; `read(after, limit)` gets the entries for the holder.

        Raises:
            BadRequest: `maxResults` is no number from 0 to the page size, or the token is not one of ours.
            NotFound: as `read`, whatever is wrong with the request.
        """
        try:
            size = self._size(request.max_results)
            after = self._after(holder, listing, request.page_token) if request.page_token else 0
        except BadRequest:
            # Whoever may not see the listing is told that first.
            read(0, 1)
            raise
        entries = read(after, size + 1)
        if len(entries) <= size:
            return entries, None
        page = entries[:size]
        return page, self._token(holder, listing, page[-1].key if page else after)

    def _size(self, max_results: str | None) -> int:
        if max_results is None:
            return self.page_size
        return min(whole_number("maxResults", max_results, low=0, high=500), self.page_size)

    def _token(self, holder: str, listing: str, after: int) -> str:
        return self._seals.sealed({"holder": holder, "listing": listing, "after": after})

    def _after(self, holder: str, listing: str, token: str) -> int:
        found = self._seals.opened(token, _PageToken)
        if found is None or (found.holder, found.listing) != (holder, listing):
            raise BadRequest("pageToken", token, HINT)
        return found.after
