"""Errors of the pipelines.

LakeshareError (lakeshare_server.errors)
└── PipelineError
    ├── ContractError      path, line, field, problem, hint, also; a DocumentError of the server, too
    ├── SubjectError       subject, reason, fix
    │   ├── DeliveryError
    │   │   └── StoreError
    │   ├── SourceError
    │   ├── SampleError
    │   ├── MaintenanceError
    │   ├── IcebergCatalogError
    │   ├── WarehouseError
    │   ├── DownloadError
    │   └── BackupError
    │       ├── ReportUnusable
    │       ├── ObjectMissing
    │       ├── DamagedRecord
    │       └── NoResponse
    ├── InputError         subject, table, reason, fix
    ├── TransformError     path, table, function, reason, fix
    ├── NotAudited         staged, reason
    ├── Conflict           tables, base, head
    ├── BranchMoved        branch, expected, found
    ├── NoSuchPublication  table, version
    ├── ChangesDoNotAddUp  folder, found, expected
    ├── NessieError        status, code, message
    ├── SparkError         reason, fix
    │   └── JavaError
    ├── UnknownSelection   selection, reason
    └── SnowflakeError     reason, fix, passing
"""

from collections.abc import Sequence
from pathlib import Path

from lakeshare_server.errors import DocumentError, LakeshareError


class PipelineError(LakeshareError):
    """Base class of the pipelines' errors."""


class SubjectError(PipelineError):
    """What is wrong with a subject, and the remedy; `title` is the text before the subject."""

    title = ""

    def __init__(self, subject: str, reason: str, fix: str) -> None:
        super().__init__(f"{self.title}{subject}: {reason}. {fix}")
        self.subject, self.reason, self.fix = subject, reason, fix


class ContractError(PipelineError, DocumentError):
    """An invalid contract: file, path inside the file, problem and hint."""


class DeliveryError(SubjectError):
    """A delivery that cannot be read or is incomplete, or changed while it was read."""

    title = "delivery "


class StoreError(DeliveryError):
    """The store of the landing area refused a request or did not respond."""


class SourceError(SubjectError):
    """A source that cannot be read, or whose rows cannot be continued where the last publication ended."""

    title = "source "


class InputError(PipelineError):
    """A table that a set or a transform cannot read: not published, not declared, or not at the requested number."""

    def __init__(self, subject: str, table: str, reason: str, fix: str) -> None:
        super().__init__(f"{subject}: input {table} {reason}. {fix}")
        self.subject, self.table, self.reason, self.fix = subject, table, reason, fix


class TransformError(PipelineError):
    """A transform that cannot be called, failed, did not end in time, or returned other columns than the contract's."""

    def __init__(self, path: Path | str, table: str, function: str, reason: str, fix: str) -> None:
        super().__init__(f"{path}: {table}.transform: {function} {reason}. {fix}")
        self.path, self.table, self.function, self.reason, self.fix = path, table, function, reason, fix


class SampleError(SubjectError):
    """Data that no contract can be drafted from, or that a contract cannot be tested on."""


class NotAudited(PipelineError):
    """Publication refused: a verdict is missing, red, or of another state."""

    def __init__(self, staged: str, reason: str) -> None:
        super().__init__(f"{staged} is not published: {reason}.")
        self.staged, self.reason = staged, reason


class Conflict(PipelineError):
    """Tables of the set changed on main since the branch was created; a replay resolves it."""

    def __init__(self, tables: Sequence[str], base: str, head: str) -> None:
        super().__init__(
            f"{', '.join(tables)} changed on main since {base} (main is at {head}); the run must be replayed."
        )
        self.tables, self.base, self.head = tuple(tables), base, head


class BranchMoved(PipelineError):
    """A branch was written to after its audit."""

    def __init__(self, branch: str, expected: str, found: str) -> None:
        super().__init__(
            f"branch {branch} was audited at {expected} but is at {found}; "
            "audit it again with `lakeshare wap retry`, or drop it with `lakeshare wap discard`."
        )
        self.branch, self.expected, self.found = branch, expected, found


class NoSuchPublication(PipelineError):
    """A publication number that is not in the ledger, or expired: below `oldest`; any number if it is None."""

    def __init__(self, table: str, version: int | None, oldest: int = 0) -> None:
        state = f"its oldest one is {oldest}, older ones expired" if oldest else "the ledger does not have it"
        title = "publication" if version is None else f"publication {version}"
        super().__init__(
            f"table {table} has no {title}: {state}. `lakeshare publications {table}` lists them."
        )
        self.table, self.version = table, version


class MaintenanceError(SubjectError):
    """Maintenance of a table was refused; its publications and files stay as they were."""

    title = "maintenance of "


class ChangesDoNotAddUp(PipelineError):
    """The changed rows of a publication do not match the row counts of its files."""

    def __init__(self, folder: str, found: int, expected: int | None) -> None:
        super().__init__(
            f"{folder}: the changed rows make the table {found} rows longer, by the counts of its files it is "
            f"{expected}. Nothing was published: run CALL system.rewrite_data_files with rewrite-all true, so that its "
            "files have right counts, then run again."
        )
        self.folder, self.found, self.expected = folder, found, expected


class NessieError(PipelineError):
    """Nessie refused a request or did not respond; `status` is 0 if there was no response."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"Nessie answered {status} {code}: {message}" if status else f"Nessie: {message}")
        self.status, self.code = status, code


class IcebergCatalogError(SubjectError):
    """The Iceberg catalog of the settings is not usable, refused a request or did not respond."""

    title = "Iceberg catalog "


class SparkError(PipelineError):
    """Spark did not start, or died during the run."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}. {fix}")
        self.reason, self.fix = reason, fix


class WarehouseError(SubjectError):
    """The store of the tables refused a request, did not respond, or lacks what publication needs."""


class JavaError(SparkError):
    """No usable Java was found."""


class DownloadError(SubjectError):
    """A pinned file could not be downloaded, or differs from the lock file."""


class UnknownSelection(PipelineError):
    """An asset selection that Dagster does not understand, or that selects nothing."""

    def __init__(self, selection: str, reason: str) -> None:
        super().__init__(
            f"--select {selection!r}: {reason.rstrip('.')}. Write it as for `dagster asset materialize`: "
            "flights/departures,flights/daily_delays, or * for all."
        )
        self.selection, self.reason = selection, reason


class SnowflakeError(PipelineError):
    """Snowflake cannot show a publication, refused a statement or did not respond; `passing`: retry later."""

    def __init__(self, reason: str, fix: str, *, passing: bool = False) -> None:
        super().__init__(f"Snowflake: {reason}. {fix}")
        self.reason, self.fix, self.passing = reason, fix, passing


class BackupError(SubjectError):
    """A backup or restore that cannot continue; `subject` is a location, a point or a setting."""


class ReportUnusable(BackupError):
    """A store's inventory report is damaged, empty or incomplete; another report may be usable."""


class ObjectMissing(BackupError):
    """An object that a listing, a log or a request names does not exist."""

    def __init__(self, location: str) -> None:
        super().__init__(location, "it is not there", "It may have been removed since it was listed.")


class DamagedRecord(BackupError):
    """A record of a backup point is unreadable or was changed; the copies may be intact."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason, "Use another point: `lakeshare backup list` shows which are whole.")


class NoResponse(BackupError):
    """A store did not respond to a request and its retries."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason, "Check the endpoint and the network; what is copied already stays.")
