"""What has to start at once imports little: the command line, the server, and the process that reduces metadata."""

import subprocess
import sys

import pytest

PIPELINES = ("dagster", "pandas", "pyspark")
HEAVY = (*PIPELINES, "fastapi", "httpx", "pyarrow", "pyiceberg", "sqlalchemy")
LIGHT_MODULES = {
    "lakeshare_pipelines.cli.main": HEAVY,
    "lakeshare_server.iceberg_rest.trimming": HEAVY,
    "lakeshare_server.catalog": (*PIPELINES, "fastapi", "httpx", "pyarrow", "pyiceberg"),
    "lakeshare_server.app": (*PIPELINES, "pyiceberg"),
    # With DuckDB imported before a run in the same process, its module prints a list of leaks at the end.
    "lakeshare_pipelines.demo.story": ("duckdb",),
}


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_a_module_that_starts_a_process_imports_no_large_library(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {LIGHT_MODULES[module]} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "[]"
