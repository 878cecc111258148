"""What Spark's exceptions mean: a full disk, a dead driver, a catalog that is gone."""

from collections.abc import Iterator
from contextlib import contextmanager

from lakeshare_pipelines.errors import NessieError, PipelineError, SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import driver_pid

NESSIE_GONE = ("HttpClientException", "NessieServiceException", "NessieBackendThrottled")
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


@contextmanager
def explained(settings: LakeSettings, doing: str) -> Iterator[None]:
    """Turn Spark's exceptions inside the block into ours, with what to do; what is not known passes unchanged.

    Raises:
        SparkError: the driver died, or a disk is full.
        NessieError: the catalog does not answer.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        known = _known(settings, doing, error)
        if known is None:
            raise
        raise known from error


def _known(settings: LakeSettings, doing: str, error: Exception) -> PipelineError | None:
    text = str(error)
    if any(words in text for words in DISK_FULL):
        return SparkError(
            f"{doing}: the disk is full", f"free space below {settings.warehouse}, then run again"
        )
    if any(name in text for name in NESSIE_GONE):
        return NessieError(
            0,
            "UNREACHABLE",
            f"{doing}: the catalog does not answer; run again, `lakeshare doctor` looks at it",
        )
    if _is_driver_gone(settings, error):
        log = settings.logs_dir / "spark.log"
        return SparkError(f"{doing}: Spark died", f"run again; if it happens twice read the end of {log}")
    return None


def _is_driver_gone(settings: LakeSettings, error: Exception) -> bool:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    # Between the kill and the first failed call PySpark answers with errors that only half explain themselves.
    return (
        settings.spark_mode != "connect"
        and type(error).__module__.startswith(("py4j", "pyspark"))
        and driver_pid() is None
    )
