"""Which process holds something, so that another one on the same host can tell that it died."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number."""

    host: str
    pid: int
    start: str | None

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """This process."""
        return cls(_host(), os.getpid(), _start(os.getpid()))

    def is_dead(self) -> bool:
        """Whether the process ran on this very host and is gone. Elsewhere nobody can tell: False."""
        if self.host != _host():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.start is not None and _start(self.pid) != self.start


def _host() -> str:
    # Containers on one host share neither process numbers nor, always, names: the namespace tells them apart.
    parts = [platform.node()]
    boot = PROC / "sys/kernel/random/boot_id"
    namespace = PROC / "self/ns/pid"
    if boot.exists() and namespace.exists():
        parts += [boot.read_text().strip(), str(namespace.readlink())]
    return "/".join(parts)


def _start(pid: int) -> str | None:
    """The process's start time in ticks; None without a /proc, or for a zombie, which holds nothing."""
    try:
        # The command's name, in parentheses, may itself hold spaces and parentheses.
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, start = fields[0], fields[19]
    return None if state == "Z" else start
