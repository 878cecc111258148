"""What Spark's exceptions mean: a full disk, a dead driver, no memory, a catalog that is gone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lakeshare_pipelines.errors import DeliveryError, NessieError, PipelineError, SparkError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.session import driver_exit_code, has_driver_ended

NESSIE_GONE = ("HttpClientException", "NessieServiceException", "NessieBackendThrottled")
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
NO_MEMORY = ("java.lang.OutOfMemoryError", "Java heap space", "GC overhead limit exceeded")
NO_MEMORY_EXIT = 52
"""Exit code of a JVM that Spark ends because of an OutOfMemoryError (SparkExitCode.OOM)."""
VALUE_TOO_LONG = "exceeds the maximum number of characters defined in your parser settings"
ENDING_S = 5


@contextmanager
def explained(settings: LakeSettings, doing: str, files: Sequence[Path] = ()) -> Iterator[None]:
    """Turn Spark's exceptions inside the block into ours, with what to do; what is not known passes unchanged.

    `files` are those that are read in the block: where memory does not suffice, one of them is named.

    Raises:
        SparkError: the driver that this process started has ended, memory did not suffice, or a disk is full.
        DeliveryError: a value of a file is longer than a line may be.
        NessieError: the catalog does not answer.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        known = _known(settings, doing, files, error)
        if known is None:
            raise
        raise known from error


def _known(
    settings: LakeSettings, doing: str, files: Sequence[Path], error: Exception
) -> PipelineError | None:
    # First: PySpark's exceptions ask the driver for their own text.
    if _is_driver_gone(error):
        if driver_exit_code() == NO_MEMORY_EXIT:
            return _no_memory(settings, doing, files, "")
        log = settings.logs_dir / "spark.log"
        return SparkError(f"{doing}: Spark died", f"run again; if it happens twice read the end of {log}")
    text = str(error)
    if any(words in text for words in DISK_FULL):
        return SparkError(
            f"{doing}: the disk is full", f"free space below {settings.warehouse}, then run again"
        )
    too_long = [file for file in files if VALUE_TOO_LONG in text and file.name in text]
    if too_long:
        # `<landing>/<set>/<partition>/<file>`
        return DeliveryError(
            "/".join(too_long[0].parts[-3:]),
            f"a value is longer than {settings.max_line_mb} MiB, as where a quote is not closed",
            "Correct the file, or raise LAKESHARE_MAX_LINE_MB, and LAKESHARE_SPARK_DRIVER_MEMORY with it.",
        )
    if any(words in text for words in NO_MEMORY):
        return _no_memory(settings, doing, files, text)
    if any(name in text for name in NESSIE_GONE):
        return NessieError(
            0,
            "UNREACHABLE",
            f"{doing}: the catalog does not answer; run again, `lakeshare doctor` looks at it",
        )
    return None


def _no_memory(settings: LakeSettings, doing: str, files: Sequence[Path], text: str) -> SparkError:
    named = [file for file in files if file.name in text]
    there = [file for file in files if file.exists()]
    if named:
        where = f" while it read {named[0].parent.name}/{named[0].name}"
    elif there:
        largest = max(there, key=lambda file: file.stat().st_size)
        where = f"; the largest file it read is {largest.parent.name}/{largest.name}"
    else:
        where = ""
    return SparkError(
        f"{doing}: Spark ran out of memory{where}",
        f"raise LAKESHARE_SPARK_DRIVER_MEMORY (it is {settings.spark_driver_memory}), lower LAKESHARE_MAX_LINE_MB "
        f"(it is {settings.max_line_mb}) so that long lines are refused, or deliver smaller files, then run again",
    )


def _is_driver_gone(error: Exception) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    # A killed JVM's connections close a moment before its process has ended.
    is_cut_off = isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
    return has_driver_ended(wait_s=ENDING_S if is_cut_off else 0)
