"""How listings tell how far they are: sentences, for the log of a run or a terminal."""

import logging
from collections.abc import Callable

Tell = Callable[[str], None]

log = logging.getLogger("lakeshare_pipelines.backup.listing")


def to_log(sentence: str) -> None:
    """Tell it to the log."""
    log.info("%s", sentence)
