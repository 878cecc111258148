"""What has to start at once imports little: the command line, and the process that reduces large metadata files."""

import subprocess
import sys

import pytest

HEAVY = ("dagster", "fastapi", "httpx", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy")


@pytest.mark.parametrize("module", ["lakeshare_pipelines.cli.main", "lakeshare_server.iceberg_rest.trimming"])
def test_a_module_that_starts_a_process_imports_no_large_library(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "[]"
