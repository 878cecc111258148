"""The folder that all workers of a test run share, for what one of them makes and the others use."""

import os
from pathlib import Path

import pytest


def folder_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of the test run; those of its workers are in it."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
