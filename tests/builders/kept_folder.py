"""A folder that is filled once for several tests and put back before each: the same paths, contents and times."""

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KeptFolder:
    """A filled folder and a copy of it beside it. Records inside may name its path, which stays the same."""

    path: Path

    @property
    def copy(self) -> Path:
        return self.path.with_name(f"{self.path.name}-kept")

    def put_back(self) -> Path:
        """Undo what a test changed; the first call keeps what is there."""
        if not self.copy.exists():
            shutil.copytree(self.path, self.copy, symlinks=True)
            return self.path
        shutil.rmtree(self.path)
        shutil.copytree(self.copy, self.path, symlinks=True)
        return self.path
