"""When each token was used last, and from where: kept in memory by each worker, written together now and then."""

import threading
from datetime import UTC, datetime, timedelta

from lakeshare_server.catalog.allowances import inserting
from lakeshare_server.catalog.database import Catalog
from lakeshare_server.catalog.models import TokenUseRow

LONGEST_ADDRESS = 64
ACCURACY = timedelta(minutes=1)
MOST = 50_000


class TokenUses:
    """Notes uses at the price of a look into a dictionary, to the minute; safe from any thread."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._noted: dict[str, tuple[datetime, str | None]] = {}
        self._unwritten: dict[str, tuple[datetime, str | None]] = {}
        self._turn = threading.Lock()

    def note(self, credential_id: str, address: str | None) -> None:
        """A token, client secret or policy let somebody in, just now."""
        now = datetime.now(UTC)
        last = self._noted.get(credential_id)
        if last is not None and now - last[0] < ACCURACY and last[1] == address:
            return
        with self._turn:
            if len(self._noted) >= MOST:
                self._noted.clear()
            self._noted[credential_id] = self._unwritten[credential_id] = now, address

    def write(self) -> None:
        """Write what was noted since the last time.

        Raises:
            Unavailable: the database does not answer; what was noted is kept.
        """
        with self._turn:
            noted, self._unwritten = self._unwritten, {}
        if not noted:
            return
        try:
            self._write(noted)
        except BaseException:
            with self._turn:
                self._unwritten = noted | self._unwritten
            raise

    def _write(self, noted: dict[str, tuple[datetime, str | None]]) -> None:
        # In one order everywhere: two workers that write the same rows wait for each other, not for ever.
        rows = [
            {
                "token_id": token_id,
                "last_used_at": at,
                "last_used_from": address and address[:LONGEST_ADDRESS],
            }
            for token_id, (at, address) in sorted(noted.items())
        ]
        with self.catalog.writing(seen=False) as session:
            put = inserting(session, TokenUseRow, rows)
            newer = {name: put.excluded[name] for name in ("last_used_at", "last_used_from")}
            session.execute(
                put.on_conflict_do_update(
                    index_elements=["token_id"],
                    set_=newer,
                    where=TokenUseRow.last_used_at < put.excluded.last_used_at,
                )
            )
