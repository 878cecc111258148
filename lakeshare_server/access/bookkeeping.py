"""What requests leave to be written later, by a thread of its own: uses of tokens, and what meters owe."""

import logging
import threading
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError

from lakeshare_server.access.meters import Meter
from lakeshare_server.catalog import TokenUses
from lakeshare_server.errors import LakeshareError

EVERY_S = 0.5

_log = logging.getLogger(__name__)


class Bookkeeping:
    """Writes twice a second what there is, and the rest when it is stopped."""

    def __init__(self, uses: TokenUses, meters: Sequence[Meter]) -> None:
        self._uses, self._meters = uses, meters
        self._stopping = threading.Event()
        self._writer: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write."""
        self._writer = threading.Thread(target=self._keep_writing, name="bookkeeping", daemon=True)
        self._writer.start()

    def stop(self) -> None:
        """Write what is left, and end."""
        self._stopping.set()
        if self._writer is not None:
            self._writer.join()
            self._write()

    def _keep_writing(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self._write()

    def _write(self) -> None:
        for write in (self._uses.write, *(meter.settle for meter in self._meters)):
            try:
                write()
            except (LakeshareError, SQLAlchemyError) as error:
                # It is kept, and written with the next.
                _log.warning("uses of tokens and limits wait to be written: %s", error)
