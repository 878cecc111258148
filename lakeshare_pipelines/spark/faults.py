"""What Spark's exceptions mean: a full disk, a dead driver, a catalog that is gone."""

from collections.abc import Iterator
from contextlib import contextmanager

from lakeshare_pipelines.errors import NessieError, PipelineError, SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import has_driver_ended

NESSIE_GONE = ("HttpClientException", "NessieServiceException", "NessieBackendThrottled")
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
ENDING_S = 5


@contextmanager
def explained(settings: LakeSettings, doing: str) -> Iterator[None]:
    """Turn Spark's exceptions inside the block into ours, with what to do; what is not known passes unchanged.

    Raises:
        SparkError: the driver that this process started has ended, or a disk is full.
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
    # First: PySpark's exceptions ask the driver for their own text.
    if _is_driver_gone(error):
        log = settings.logs_dir / "spark.log"
        return SparkError(f"{doing}: Spark died", f"run again; if it happens twice read the end of {log}")
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
    return None


def _is_driver_gone(error: Exception) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    # A killed JVM's connections close a moment before its process has ended.
    is_cut_off = isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
    return has_driver_ended(wait_s=ENDING_S if is_cut_off else 0)
