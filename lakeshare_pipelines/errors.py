"""What can go wrong in the pipelines, as data.

LakeshareError (lakeshare_server.errors)
└── PipelineError
    ├── ContractError      path, field, hint, also   the contract file is wrong
    ├── DeliveryError      delivery, reason, fix     the delivery cannot be read or is not whole
    │   ├── StoreError     delivery, reason, fix     the store it lands in refused, or did not answer
    │   └── DeliveriesRefused  refused               some deliveries of a set are refused, the others were taken
    ├── NotAudited         staged, reason            publish refused: no green verdict for this very state
    ├── Conflict           tables, base, head        main moved under a staged set: replay answers it
    ├── BranchMoved        branch, expected, found   the branch is not what was audited
    ├── NoSuchPublication  table, version            the ledger does not have that number
    ├── ChangesDoNotAddUp  folder, found, expected   the changed rows are not as many as the files' counts say
    ├── NessieError        status, code, message     Nessie refused or is not there
    ├── SparkError         reason, fix               Spark did not start or died
    ├── JavaError          reason, fix               no usable Java
    ├── DownloadError      coordinate, reason, fix   a jar could not be had, or is not what the lock says
    ├── BackupError        subject, reason, fix      a backup or restore cannot go on, or must not
    │   ├── ReportUnusable                           a store's report of its objects is damaged or lacks something
    │   ├── ObjectMissing  subject                   an object that was told of is not there
    │   ├── DamagedRecord  subject, reason           a backup point's own record is missing, cut or changed
    │   └── NoAnswer       subject, reason           a store did not answer, though it was asked again and again
    └── SnowflakeError     reason, fix, passing      Snowflake cannot show a publication, refused, or did not answer
"""

from collections.abc import Sequence
from pathlib import Path

from lakeshare_server.errors import LakeshareError


class PipelineError(LakeshareError):
    """Base of every error the pipelines raise on purpose."""


class ContractError(PipelineError):
    """A contract that cannot be used; names the file, the path inside it and the remedy.

    `also` holds the further errors of the same file: all of them are found at once.
    """

    def __init__(
        self, path: Path | str, field: str, problem: str, hint: str, also: "Sequence[ContractError]" = ()
    ) -> None:
        super().__init__("\n".join([f"{path}: {field}: {problem}. {hint}", *(str(error) for error in also)]))
        self.path, self.field, self.problem, self.hint = path, field, problem, hint
        self.also = tuple(also)


class DeliveryError(PipelineError):
    """A delivery that cannot be read, or changed while it was read."""

    def __init__(self, delivery: str, reason: str, fix: str) -> None:
        super().__init__(f"delivery {delivery}: {reason}. {fix}")
        self.delivery, self.reason, self.fix = delivery, reason, fix


class StoreError(DeliveryError):
    """The store deliveries land in refused or did not answer: it holds for all of them."""


class DeliveriesRefused(DeliveryError):
    """Some deliveries of a set cannot be taken; all others were."""

    def __init__(self, refused: "Sequence[DeliveryError]") -> None:
        super().__init__(
            ", ".join(error.delivery for error in refused),
            "; ".join(dict.fromkeys(error.reason for error in refused)),
            " ".join(dict.fromkeys(error.fix for error in refused)),
        )
        self.refused = tuple(refused)


class NotAudited(PipelineError):
    """Publication refused: a verdict is missing, red, or speaks of another state."""

    def __init__(self, staged: str, reason: str) -> None:
        super().__init__(f"{staged} is not published: {reason}.")
        self.staged, self.reason = staged, reason


class Conflict(PipelineError):
    """Tables of the set changed on main since the branch was cut."""

    def __init__(self, tables: Sequence[str], base: str, head: str) -> None:
        super().__init__(
            f"{', '.join(tables)} changed on main since {base} (main is at {head}); the run must be replayed."
        )
        self.tables, self.base, self.head = tuple(tables), base, head


class BranchMoved(PipelineError):
    """Somebody wrote to a branch after its audit."""

    def __init__(self, branch: str, expected: str, found: str) -> None:
        super().__init__(
            f"branch {branch} was audited at {expected} but is at {found}; "
            "audit it again with `lakeshare wap retry`, or drop it with `lakeshare wap discard`."
        )
        self.branch, self.expected, self.found = branch, expected, found


class NoSuchPublication(PipelineError):
    """A publication number that the ledger does not have."""

    def __init__(self, table: str, version: int) -> None:
        super().__init__(
            f"table {table} has no publication {version}. `lakeshare publications {table}` lists them."
        )
        self.table, self.version = table, version


class ChangesDoNotAddUp(PipelineError):
    """The rows that a publication changes are more or fewer than the counts of its files say."""

    def __init__(self, folder: str, found: int, expected: int | None) -> None:
        super().__init__(
            f"{folder}: the changed rows make the table {found} rows longer, by the counts of its files it is "
            f"{expected}. Nothing was published: run CALL system.rewrite_data_files with rewrite-all true, so that its "
            "files have right counts, then run again."
        )
        self.folder, self.found, self.expected = folder, found, expected


class NessieError(PipelineError):
    """Nessie refused a call, or did not answer."""

    def __init__(self, status: int, code: str, message: str) -> None:
        # 0: it did not answer at all, or never ran; the message says which.
        super().__init__(f"Nessie answered {status} {code}: {message}" if status else f"Nessie: {message}")
        self.status, self.code = status, code


class SparkError(PipelineError):
    """Spark did not start, or died during the run."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}. {fix}")
        self.reason, self.fix = reason, fix


class JavaError(PipelineError):
    """No usable Java."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"{reason}. {fix}")
        self.reason, self.fix = reason, fix


class DownloadError(PipelineError):
    """A pinned file could not be fetched, or is not what the lock says."""

    def __init__(self, coordinate: str, reason: str, fix: str) -> None:
        super().__init__(f"{coordinate}: {reason}. {fix}")
        self.coordinate, self.reason, self.fix = coordinate, reason, fix


class SnowflakeError(PipelineError):
    """Snowflake cannot show a publication, refused a statement or did not answer; `passing`: it may work later."""

    def __init__(self, reason: str, fix: str, *, passing: bool = False) -> None:
        super().__init__(f"Snowflake: {reason}. {fix}")
        self.reason, self.fix, self.passing = reason, fix, passing


class BackupError(PipelineError):
    """A backup or a restore that cannot go on, or must not; `subject` is a location, a point or a setting."""

    def __init__(self, subject: str, reason: str, fix: str) -> None:
        super().__init__(f"{subject}: {reason}. {fix}")
        self.subject, self.reason, self.fix = subject, reason, fix


class ReportUnusable(BackupError):
    """A store's report of its objects is damaged, empty, or lacks what a backup needs; another one may do."""


class ObjectMissing(BackupError):
    """An object that a listing, a log or a request told of is not there."""

    def __init__(self, location: str) -> None:
        super().__init__(location, "it is not there", "It may have been removed since it was listed.")


class DamagedRecord(BackupError):
    """A record of a backup point cannot be read, or is not what was written; the copies may be whole."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason, "Use another point: `lakeshare backup list` shows which are whole.")


class NoResponse(BackupError):
    """A store that did not answer a request, though it was asked again and again."""

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(subject, reason, "Check the endpoint and the network; what is copied already stays.")
