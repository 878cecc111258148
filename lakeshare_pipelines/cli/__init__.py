"""The `lakeshare` command. A host that only serves lacks the packages that the commands of the pipelines need."""

from importlib.util import find_spec

# Some of what the extra `pipelines` installs, and the server does not need.
NEEDED = ("dagster", "great_expectations", "psutil", "pyspark")


def find_missing_packages() -> list[str]:
    """The packages that commands of the pipelines need and that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]
