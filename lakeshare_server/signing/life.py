"""How long what we sign may live: never longer than what signs it."""

import time

from lakeshare_server.errors import Unavailable

# SigV4, Google's V4 and Azure's delegation keys agree on seven days.
LONGEST_S = 604_800


def now_s() -> int:
    """The clock that signatures are dated by."""
    return int(time.time())


def life_left(moment_s: int, life_s: int, ends_ms: int | None, longest_s: int = LONGEST_S) -> int:
    """The life in force at `moment_s` for what is signed with credentials that end at `ends_ms`.

    Raises:
        Unavailable: they have ended.
    """
    left_s = life_s if ends_ms is None else min(life_s, ends_ms // 1000 - moment_s)
    if left_s < 1:
        raise Unavailable(
            "the credentials that sign URLs have ended",
            "Whoever issues them must renew them; try again then.",
        )
    return min(left_s, longest_s)
