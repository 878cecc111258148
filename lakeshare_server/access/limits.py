"""How much a recipient may ask for: requests in a minute, files and bytes it gets URLs of in a day.

Requests are counted before they are answered. What an answer signs is counted while it is sent: one that has begun is
completed, the next is refused.
"""

from collections.abc import Sequence

from lakeshare_server.access.meters import Meter
from lakeshare_server.catalog.allowances import Allowances
from lakeshare_server.catalog.credentials import Access
from lakeshare_server.settings import ServerSettings

MINUTE_S, DAY_S = 60, 86_400
REQUESTS, URLS, BYTES = "requests_per_minute", "urls_per_day", "bytes_per_day"


class Limits:
    """The limits of recipients: their own, or those of the settings; safe from any thread."""

    def __init__(self, allowances: Allowances, settings: ServerSettings) -> None:
        self._usual = {name: getattr(settings, name) for name in (REQUESTS, URLS, BYTES)}
        self._requests = Meter(allowances, REQUESTS, MINUTE_S)
        self._signed = {name: Meter(allowances, name, DAY_S) for name in (URLS, BYTES)}

    @property
    def meters(self) -> Sequence[Meter]:
        """All meters that may owe something."""
        return tuple(self._signed.values())

    def let_in_at_once(self, access: Access) -> bool:
        """Count a request, if that takes no look at the catalog."""
        most = self._most(access, REQUESTS)
        return most is None or self._requests.try_use(access.reader.id, most)

    def let_in(self, access: Access) -> None:
        """Count a request.

        Raises:
            TooManyRequests: the recipient has made as many in this minute as it may.
        """
        most = self._most(access, REQUESTS)
        if most is not None:
            told = f"{access.reader.name} may make {most} requests in a minute, and has made them"
            self._requests.use(access.reader.id, most, told)

    def require_signing(self, access: Access) -> None:
        """Whether the recipient may get more URLs today.

        Raises:
            TooManyRequests: it has had as many, or as many bytes, as it may.
        """
        for name, unit in ((URLS, "files"), (BYTES, "bytes")):
            most = self._most(access, name)
            if most is not None:
                told = f"{access.reader.name} may get {most} {unit} in a day (UTC), and has got them"
                self._signed[name].require(access.reader.id, most, told)

    def has_signed(self, access: Access, files: int, size_bytes: int) -> None:
        """Count what an answer signed."""
        for name, amount in ((URLS, files), (BYTES, size_bytes)):
            most = self._most(access, name)
            if most is not None and amount:
                self._signed[name].count(access.reader.id, most, amount)

    def _most(self, access: Access, name: str) -> int | None:
        own = access.limits.get(name)
        return self._usual[name] if own is None else own
