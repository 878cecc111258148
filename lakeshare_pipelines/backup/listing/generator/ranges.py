"""Ranges of keys that can be listed side by side, and where a range can be cut in two.

A cut is a place between keys that stores of either order agree on: S3 sorts whole keys by their bytes, others sort
folder by folder, and lose keys when they are asked to begin at a place that is another one in their order.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

HIGHEST = "~"
"""The last character that keys usually have; higher ones are looked for only where a key was seen to have one."""
SURROGATES = range(0xD800, 0xE000)

FIRST_THREE = 3
"""Names that begin alike: an object's, that of a folder called the same, and in either order one more."""


class Look(Protocol):
    """A few names in a bucket: one small request."""

    async def __call__(
        self, prefix: str, after: str = "", *, most: int = 1, by_folder: bool = False
    ) -> list[str]:
        """The first keys with a prefix after a place; with `by_folder` what is below the next slash is one name."""
        ...


@dataclass(frozen=True)
class KeyRange:
    """Keys that begin with `prefix`, lie after `after` and not after `until`.

    Python compares texts by code points, which is the order of the bytes of their UTF-8.
    """

    prefix: str
    after: str = ""
    until: str | None = None

    def is_past(self, key: str) -> bool:
        """Whether a key lies behind the range."""
        return self.until is not None and key > self.until


async def cut_of(look: Look, keys: KeyRange, last: str, *, in_any_order: bool = True) -> str | None:
    """A place about in the middle of what a range has after the key `last`; None where none was found.

    By bisection: first for the leftmost character of `last` in which a later key differs, then for the highest
    character that keys have there. Needs some fifteen requests of one key each. With `in_any_order` only a cut will do
    that stores of either order agree on.
    """

    async def after(place: str) -> str | None:
        found = await look(keys.prefix, place)
        return found[0] if found and not keys.is_past(found[0]) else None

    position = await _leftmost_change(after, keys.prefix, last)
    if position is None:
        return None
    stem = last[:position]
    found = await after(_raised(last, position))
    if found is None or not found.startswith(stem) or len(found) <= position:
        return None
    highest = await _highest(after, stem, found[position])
    middle = (ord(last[position]) + highest + 1) // 2
    cut = stem + chr(middle if middle not in SURROGATES else SURROGATES.stop)
    if cut <= last or (in_any_order and not await _is_safe(look, keys.prefix, cut)):
        return None
    return cut


async def _leftmost_change(
    after: Callable[[str], Awaitable[str | None]], prefix: str, last: str
) -> int | None:
    """The first position after the prefix at which some later key has a higher character than `last`."""
    low, high = len(prefix), len(last)
    while low < high:
        middle = (low + high) // 2
        if await after(_raised(last, middle)) is None:
            low = middle + 1
        else:
            high = middle
    return low if low < len(last) else None


async def _highest(after: Callable[[str], Awaitable[str | None]], stem: str, known: str) -> int:
    """The code point of the highest character that a key has behind `stem`; some key has `known` there."""
    low, high = ord(known), max(ord(HIGHEST), ord(known))
    while low < high:
        middle = (low + high + 1) // 2
        found = await after(stem + chr(middle)) if middle not in SURROGATES else None
        if found is not None and found.startswith(stem):
            low = max(middle, ord(found[len(stem)]))
            high = max(low, high)
        else:
            high = middle - 1
    return low


def _raised(key: str, position: int) -> str:
    higher = min(ord(key[position]) + 1, 0x10FFFF)
    return key[:position] + chr(higher if higher not in SURROGATES else SURROGATES.stop)


def folders_behind(prefix: str, key: str) -> list[str]:
    """The folders that come before a key when folders are sorted by their names, and behind it by whole keys."""
    return [f"{key[:at]}/" for at in range(len(prefix), len(key)) if key[at] < "/"]


async def has_folder(look: Look, folder: str) -> bool:
    """Whether some key begins with a folder's name, which has its slash; true as well where that is not certain.

    Two names are looked at rather than one key below the folder: where there is none, SeaweedFS 4.48 reads all names
    that begin like the folder's to find that out, which can be most of a bucket.
    """
    stem = folder[:-1]
    first, behind = await asyncio.gather(
        # Where folders are sorted by their names, this one is first of those that begin like it.
        look(stem, most=FIRST_THREE, by_folder=True),
        # Where whole keys are sorted, it is first behind all that have a lower character than its slash.
        look(stem, f"{stem}.{chr(sys.maxunicode)}", by_folder=True),
    )
    return folder in first or any(name <= folder for name in behind)


async def _is_safe(look: Look, prefix: str, cut: str) -> bool:
    """Whether a cut divides keys alike in both orders.

    It does not where a folder's name ends while the cut goes on below a slash (`a/` and the cut `a-5`), nor where the
    cut has a slash and other names go on below it (`a-b` and the cut `a/5`).
    """
    slashes = [at for at in range(len(prefix), len(cut)) if cut[at] == "/"]
    folders, names = await asyncio.gather(
        asyncio.gather(*(has_folder(look, folder) for folder in (*folders_behind(prefix, cut), f"{cut}/"))),
        # In either order the first three names have one below the slash, if there is any.
        asyncio.gather(*(look(cut[:at], most=FIRST_THREE, by_folder=True) for at in slashes)),
    )
    found = zip(slashes, names, strict=True)
    return not any(folders) and not any(name[at:] and name[at] < "/" for at, some in found for name in some)
