"""What is backed up where, how and for how long: the YAML of backups, and the default when there is none."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings

GIB = 1024**3
COPY_LIMIT_BYTES = 5 * GIB
"""What one CopyObject request takes at most (5,368,709,120 bytes)."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ListingSource(_Part):
    """Where the listing comes from."""

    kind: Literal["generator", "s3_inventory", "s3_metadata", "manifest_csv"] = Field(
        "generator",
        description="generator: lakeshare lists the source itself. s3_inventory: the store's own reports. s3_metadata: "
        "its tables. manifest_csv: only what a manifest names (bucket,key[,version], keys URL-encoded).",
    )
    location: str | None = Field(
        None,
        description="s3_inventory: where reports arrive, s3://bucket/prefix/source-bucket/config-id or a folder; "
        "s3_metadata: the live inventory table, as a location of its metadata or catalog.namespace.table; "
        "manifest_csv: the manifest.",
    )
    store: StoreAddress | None = Field(
        None,
        description="How `location` is reached, where not as the source is; its `url` is the bucket or folder.",
    )
    journal: str | None = Field(
        None,
        description="s3_metadata: the journal table, told as `location` is; with it the listing is of the day's end.",
    )
    lag_days: int = Field(
        2, ge=0, description="Days after the day itself before a report's scan may begin: reports are late."
    )
    wait_hours: int = Field(
        36, ge=0, description="How long to wait for a report, before the generator lists."
    )
    versions: bool = Field(False, description="List all versions, to heal from older ones.")


class Prices(_Part):
    """US dollars, for estimates only; today's are on the store's price page."""

    per_million_copies: float = Field(5.0, ge=0, description="COPY and PUT requests of the target's class.")
    per_million_listed: float = Field(0.0025, ge=0, description="Objects of an inventory report.")
    per_million_tasks: float = Field(1.0, ge=0, description="Objects of a Batch Operations job.")
    per_job: float = Field(0.25, ge=0, description="A Batch Operations job.")
    per_gib_month: float = Field(0.023, ge=0, description="Storage of the target's class.")
    per_gib_transferred: float = Field(0.0, ge=0, description="Between the two regions.")
    per_gib_thawed: float = Field(0.0025, ge=0, description="Retrieval from an archive.")


class Bounds(_Part):
    """What a plan must not exceed: it is refused before anything is copied. None: no bound."""

    objects: int | None = Field(None, ge=0)
    bytes: int | None = Field(None, ge=0)
    usd: float | None = Field(None, ge=0)
    minutes: float | None = Field(None, ge=0)


class Retention(_Part):
    """How many points of each kind stay (grandfather, father, son)."""

    daily: int = Field(7, ge=1)
    weekly: int = Field(5, ge=0)
    monthly: int = Field(12, ge=0)
    yearly: int = Field(3, ge=0)


class Scrub(_Part):
    """How often copies are read again and compared with what was backed up."""

    within_days: int = Field(
        30, ge=1, description="Every copy is read again within so many days, as far as the two budgets allow."
    )
    bytes_per_scrub: int = Field(
        100 * GIB,
        ge=1,
        description="What one `lakeshare backup scrub` reads at most; a single larger copy is read all the same.",
    )
    bytes_per_run: int = Field(
        10 * GIB,
        ge=0,
        description="What each run reads again of the copies in a folder that earlier points hold, before it calls a "
        "table verified; those first that were not read for the longest time.",
    )


class Lock(_Part):
    """Object Lock of the copies; the target bucket must have been made with it."""

    mode: Literal["governance", "compliance"] = Field(
        description="governance: who may bypass it can delete. compliance: nobody can, not even the account's owner."
    )


class Batch(_Part):
    """S3 Batch Operations, for the engine `aws_batch`."""

    account: Annotated[str, Field(pattern=r"^\d{12}$", description="The account jobs run in: the target's.")]
    role_arn: Annotated[str, Field(pattern=r"^arn:[a-z-]+:iam::\d{12}:role/.+", description="Who copies.")]
    endpoint: str | None = Field(None, description="URL of s3control, for a stand-in; AWS by default.")
    priority: int = Field(10, ge=0, le=2**31 - 1)
    confirm: bool = Field(False, description="Let jobs wait until a person confirms them.")
    storage_class: (
        Literal["STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"] | None
    ) = Field(None, description="Storage class of the copies; the target's own default by default.")


class Backup(_Part):
    """One backup: a source, a target, and how."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    source: StoreAddress = Field(description="What is backed up.")
    target: StoreAddress = Field(description="Where copies and points are kept.")
    listing: ListingSource = ListingSource()
    engine: Literal["local", "spark", "aws_batch"] = Field(
        "local",
        description="Who copies: local: this host. spark: Spark's executors. aws_batch: S3 Batch Operations.",
    )
    layout: Literal["incremental", "dated"] = Field(
        "incremental",
        description="incremental: each object once, every point a whole by reference. dated: a full copy a day, in a "
        "bucket or folder of its own: the target's URL then has {day} in it.",
    )
    first_day: dt.date = Field(dt.date(2026, 1, 1), description="The first day there can be a point of.")
    copy_limit_bytes: int = Field(COPY_LIMIT_BYTES, ge=5 * 1024**2, description="Larger ones go in parts.")
    in_flight: int = Field(64, ge=1, le=1024, description="Copy requests at a time, per process, at most.")
    external: Literal["follow", "refuse"] = Field(
        "refuse",
        description="What tables tell of outside the source: copied as well, or the table is degraded.",
    )
    retention: Retention = Retention()
    scrub: Scrub = Scrub()
    lock: Lock | None = None
    batch: Batch | None = None
    prices: Prices = Prices()
    bounds: Bounds = Bounds()
    drill_weights: Mapping[str, float] = Field(
        default_factory=dict,
        description="How often a table is drilled, by its root; 1 where nothing is said.",
    )

    def target_of(self, day: str) -> StoreAddress:
        """Where a point's copies are: with layout `dated` a place of the day's own."""
        return self.target.model_copy(update={"url": self.target.url.replace("{day}", day)})

    @property
    def records(self) -> StoreAddress:
        """Where the points' own records are: the target, or with layout `dated` the part of it before the day."""
        if self.layout == "incremental":
            return self.target
        url = self.target.url.split("{day}")[0].rstrip("-/")
        return self.target.model_copy(update={"url": url})


def load_backups(settings: LakeSettings) -> tuple[Backup, ...]:
    """The declared backups; the warehouse into `backups` in the state folder, when nothing is declared.

    Raises:
        BackupError: the file cannot be read, or says what cannot be.
    """
    if settings.backups_file is None:
        return (make_embedded_backup(settings),)
    path = settings.backups_file
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise BackupError(
            str(path), f"it cannot be read: {error}", "Correct LAKESHARE_BACKUPS_FILE."
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("backups"), dict):
        raise BackupError(str(path), "it has no `backups`", "Begin with `backups:` and one name below it.")
    return tuple(_backup(path, str(name), one) for name, one in document["backups"].items())


def make_embedded_backup(settings: LakeSettings) -> Backup:
    """The warehouse of this host into a folder beside it."""
    return Backup(
        name="lake",
        source=StoreAddress(url=str(settings.warehouse)),
        target=StoreAddress(url=str(settings.state_dir / "backups")),
        listing=ListingSource(lag_days=0, wait_hours=0),
    )


def find_backup(settings: LakeSettings, name: str | None) -> Backup:
    """The backup of a name; the only one, when there is no name.

    Raises:
        BackupError: there is none, or more than one and no name.
    """
    found = {backup.name: backup for backup in load_backups(settings)}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        names = ", ".join(found)
        raise BackupError(
            f"backup {name or '(no name)'}", f"the declared ones are {names}", "Name one of them."
        )
    return found[name]


def _backup(path: Path, name: str, fields: object) -> Backup:
    try:
        backup = Backup.model_validate({"name": name, **(fields if isinstance(fields, dict) else {})})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        problem = f"backups.{name}.{field} is {first.get('input')!r}: {first['msg']}"
        raise BackupError(str(path), problem, "See docs/reference/backup.md.") from error
    for field, problem in _find_contradictions(backup):
        raise BackupError(str(path), f"backups.{name}.{field}: {problem}", "See docs/reference/backup.md.")
    return backup


def _find_contradictions(backup: Backup) -> list[tuple[str, str]]:
    found = []
    if (backup.layout == "dated") != ("{day}" in backup.target.url):
        found.append(("target.url", "{day} belongs into it with layout `dated`, and only then"))
    if backup.engine == "aws_batch" and (
        backup.batch is None or "folder" in (backup.source.kind, backup.target.kind)
    ):
        found.append(("engine", "aws_batch needs `batch`, and buckets at both ends"))
    if backup.listing.kind != "generator" and backup.listing.location is None:
        found.append(("listing.location", f"{backup.listing.kind} needs it"))
    if backup.listing.kind in ("s3_inventory", "manifest_csv") and not _is_location(backup.listing.location):
        found.append(("listing.location", "give an absolute path or s3://bucket/prefix"))
    if backup.target.endpoint == backup.source.endpoint and _target_is_separate(backup):
        found.append(
            ("target.url", "copies would lie among the source's objects; give them a prefix of their own")
        )
    if backup.lock is not None and backup.target.kind == "folder":
        found.append(("lock", "a folder has no Object Lock"))
    return found


def _target_is_separate(backup: Backup) -> bool:
    """The target is the source, or begins (with the day) in the midst of it: what is copied would be listed again."""
    source = backup.source.url.rstrip("/")
    return backup.target.url.split("{day}")[0].rstrip("/") == source


def _is_location(location: str | None) -> bool:
    return location is None or location.startswith(("/", "s3://"))
