"""Damage to the files of a backup as disks and people do it: the time of a file stays what it was."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

Damage = Callable[[Path, Random, list[Path]], object]


def flip_bytes(path: Path, random: Random, others: list[Path]) -> None:
    """Other bytes at some place, the same size."""
    content = bytearray(path.read_bytes())
    start = random.randrange(max(len(content), 1))
    for at in range(start, min(start + random.choice((1, 40, 2000)), len(content))):
        content[at] ^= random.randrange(1, 256)
    path.write_bytes(content)


def truncate(path: Path, random: Random, others: list[Path]) -> None:
    """The end is gone."""
    content = path.read_bytes()
    path.write_bytes(content[: random.randrange(max(len(content), 1))])


def swap(path: Path, random: Random, others: list[Path]) -> None:
    """The content of two files is exchanged."""
    other = random.choice(others)
    stat = other.stat()
    content, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(content)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def delete(path: Path, random: Random, others: list[Path]) -> None:
    """The file is gone."""
    path.unlink()


DAMAGES: tuple[Damage, ...] = (flip_bytes, truncate, swap, delete)


def damaged(path: Path, damage: Damage, random: Random, others: list[Path]) -> None:
    """Damage one file and put its time back."""
    stat = path.stat()
    damage(path, random, others)
    if path.exists():
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def removed(folder: Path) -> None:
    """A folder that nobody has any more."""
    shutil.rmtree(folder)
