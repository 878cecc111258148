"""The declaration of backups in YAML, and the default backup without one."""

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from lakeshare_pipelines.backup.stores import AccountId, StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server import yaml_documents

GIB = 1024**3
RoleArn = Annotated[
    str, yaml_documents.written_as(r"^arn:[a-z-]+:iam::\d{12}:role/.+", "arn:aws:iam::ACCOUNT:role/NAME")
]
REFERENCE = "docs/reference/backup.md"
COPY_LIMIT_BYTES = 5 * GIB  # The largest object that one CopyObject request copies (5,368,709,120 bytes)


class ListingSource(BaseModel, frozen=True, extra="forbid"):
    """Where the listing comes from."""

    kind: Literal["generator", "s3_inventory", "s3_metadata", "manifest_csv"] = Field(
        "generator",
        description="generator: lakeshare lists the source itself. s3_inventory: the store's own reports. s3_metadata: "
        "its tables. manifest_csv: only the objects of a manifest (bucket,key[,version], keys URL-encoded).",
    )
    location: str | None = Field(
        None,
        description="s3_inventory: where reports arrive, s3://bucket/prefix/source-bucket/config-id or a folder; "
        "s3_metadata: the live inventory table, as a location of its metadata or catalog.namespace.table; "
        "manifest_csv: the manifest.",
    )
    store: StoreAddress | None = Field(
        None,
        description="The store of `location` (its `url` is the bucket or folder); the source by default.",
    )
    journal: str | None = Field(
        None,
        description="s3_metadata: the journal table, given like `location`; with it the listing is of the day's end.",
    )
    lag_days: int = Field(
        2, ge=0, description="Days after the day itself before a report's scan may begin: reports are late."
    )
    wait_hours: int = Field(36, ge=0, description="How long to wait for a report before the generator lists.")
    versions: bool = Field(False, description="List all versions, to heal from older ones.")


class Prices(BaseModel, frozen=True, extra="forbid"):
    """US dollars, for estimates only; see the price page of the store."""

    per_million_copies: float = Field(5.0, ge=0, description="COPY and PUT requests of the target's class.")
    per_million_listed: float = Field(0.0025, ge=0, description="Objects of an inventory report.")
    per_million_tasks: float = Field(1.0, ge=0, description="Objects of a Batch Operations job.")
    per_job: float = Field(0.25, ge=0, description="A Batch Operations job.")
    per_gib_month: float = Field(0.023, ge=0, description="Storage of the target's class.")
    per_gib_transferred: float = Field(0.0, ge=0, description="Between the two regions.")
    per_gib_thawed: float = Field(0.0025, ge=0, description="Retrieval from an archive.")


class Bounds(BaseModel, frozen=True, extra="forbid"):
    """Limits of a plan; a larger plan is refused before anything is copied. None: no limit."""

    objects: int | None = Field(None, ge=0)
    bytes: int | None = Field(None, ge=0)
    usd: float | None = Field(None, ge=0)
    minutes: float | None = Field(None, ge=0)


class Retention(BaseModel, frozen=True, extra="forbid"):
    """How many points of each kind are kept (grandfather, father, son)."""

    daily: int = Field(7, ge=1)
    weekly: int = Field(5, ge=0)
    monthly: int = Field(12, ge=0)
    yearly: int = Field(3, ge=0)


class Scrub(BaseModel, frozen=True, extra="forbid"):
    """How often copies are read again and compared with what was backed up."""

    within_days: int = Field(
        30, ge=1, description="Every copy is read again within so many days, if the two budgets allow it."
    )
    bytes_per_scrub: int = Field(
        100 * GIB,
        ge=1,
        description="What one `lakeshare backup scrub` reads at most; a single larger copy is read all the same.",
    )
    bytes_per_run: int = Field(
        10 * GIB,
        ge=0,
        description="What each run reads at most, before it calls a table verified, of the copies in a folder that "
        "earlier points hold; first those that were not read for the longest time.",
    )


class Lock(BaseModel, frozen=True, extra="forbid"):
    """Object Lock of the copies; the target bucket must have been created with it."""

    mode: Literal["governance", "compliance"] = Field(
        description="governance: users with the permission to bypass it can delete. compliance: no user can, not even "
        "the account's owner."
    )


class Batch(BaseModel, frozen=True, extra="forbid"):
    """S3 Batch Operations, for the engine `aws_batch`."""

    account: Annotated[AccountId, Field(description="The account jobs run in: the target's.")]
    role_arn: Annotated[RoleArn, Field(description="The role that copies.")]
    endpoint: str | None = Field(None, description="URL of s3control, for a stand-in; AWS by default.")
    priority: int = Field(10, ge=0, le=2**31 - 1)
    confirm: bool = Field(False, description="Jobs wait until a person confirms them.")
    storage_class: (
        Literal["STANDARD", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"] | None
    ) = Field(None, description="Storage class of the copies; the target's own default by default.")


class Backup(BaseModel, frozen=True, extra="forbid"):
    """One backup: a source, a target and options."""

    name: Annotated[
        str, yaml_documents.written_as(r"^[a-z][a-z0-9_]{0,39}$", "up to 40 of a-z, 0-9, _, a letter first")
    ]
    source: StoreAddress = Field(description="The store that is backed up.")
    target: StoreAddress = Field(description="Where copies and points are kept.")
    listing: ListingSource = ListingSource()
    engine: Literal["local", "spark", "aws_batch"] = Field(
        "local",
        description="local: this host copies. spark: Spark's executors copy. aws_batch: S3 Batch Operations copies.",
    )
    layout: Literal["incremental", "dated"] = Field(
        "incremental",
        description="incremental: each object is copied once, every point refers to all its objects. dated: a full "
        "copy a day, in a separate bucket or folder: the target's URL then contains {day}.",
    )
    first_day: dt.date = Field(
        dt.date(2026, 1, 1), description="The first day of which there can be a point."
    )
    max_age_hours: int | None = Field(
        None,
        ge=1,
        description="Greatest age of the newest good point, in hours; above it, `recent` and metrics alert. By default "
        "the reports' lag and their wait, and a day and a half.",
    )
    copy_limit_bytes: int = Field(
        COPY_LIMIT_BYTES, ge=5 * 1024**2, description="Larger objects are copied in parts."
    )
    in_flight: int = Field(64, ge=1, le=1024, description="Copy requests at a time, per process, at most.")
    external: Literal["follow", "refuse"] = Field(
        "refuse",
        description="Files of tables outside the source. follow: copied too. refuse: the table is degraded.",
    )
    retention: Retention = Retention()
    scrub: Scrub = Scrub()
    lock: Lock | None = None
    batch: Batch | None = None
    prices: Prices = Prices()
    bounds: Bounds = Bounds()
    drill_weights: Mapping[str, float] = Field(
        default_factory=dict, description="How often a table is drilled, by its root; 1 by default."
    )

    def target_of(self, day: str) -> StoreAddress:
        """The store of a point's copies; with layout `dated` a separate one for each day."""
        return self.target.model_copy(update={"url": self.target.url.replace("{day}", day)})

    @property
    def max_age(self) -> dt.timedelta:
        """Greatest age of the newest good point."""
        if self.max_age_hours is not None:
            return dt.timedelta(hours=self.max_age_hours)
        lag = dt.timedelta(days=self.listing.lag_days, hours=self.listing.wait_hours)
        # Between two points, and for the run.
        return lag + dt.timedelta(days=1, hours=12)

    @property
    def records(self) -> StoreAddress:
        """The store of the points' records: the target, or with layout `dated` the part of it before the day."""
        if self.layout == "incremental":
            return self.target
        url = self.target.url.split("{day}")[0].rstrip("-/")
        return self.target.model_copy(update={"url": url})


def load_backups(settings: LakeSettings) -> tuple[Backup, ...]:
    """The declared backups, by default the warehouse into the state folder. Raises BackupError if they are invalid."""
    path = settings.backups_file
    if path is None:
        # Backups read folders and S3 only.
        is_read = settings.lake_root.startswith(("/", "s3://"))
        return (make_embedded_backup(settings),) if is_read else ()
    try:
        parsed = yaml_documents.read(path)
    except yaml_documents.YamlFault as fault:
        fix = f"{fault.hint} LAKESHARE_BACKUPS_FILE names the file."
        raise BackupError(f"{path}:{fault.line}", fault.problem, fix) from fault
    document = parsed.values
    if not isinstance(document, dict) or not isinstance(document.get("backups"), dict):
        problem, line = "it has no `backups`", parsed.line(("backups",))
        raise BackupError(f"{path}:{line}", problem, "Begin with `backups:` and one name below it.")
    return tuple(_parse_backup(path, parsed, name, fields) for name, fields in document["backups"].items())


def make_embedded_backup(settings: LakeSettings) -> Backup:
    """The backup of the warehouse into a folder of this host."""
    is_remote = not settings.lake_root.startswith("/")
    endpoint, region = (settings.s3_endpoint, settings.s3_region) if is_remote else (None, None)
    return Backup(
        name="lake",
        source=StoreAddress(url=settings.lake_root, endpoint=endpoint, region=region),
        target=StoreAddress(url=str(settings.state_dir / "backups")),
        listing=ListingSource(lag_days=0, wait_hours=0),
    )


def find_backup(settings: LakeSettings, name: str | None) -> Backup:
    """The backup of a name, without a name the only one. Raises BackupError if there is none, or no single one."""
    backups = {backup.name: backup for backup in load_backups(settings)}
    if name is None and len(backups) == 1:
        return next(iter(backups.values()))
    if name not in backups:
        names = ", ".join(backups) or "none: a warehouse that is neither a folder nor in S3 is not backed up"
        fix = "Name one of them." if backups else "Declare another source in LAKESHARE_BACKUPS_FILE."
        raise BackupError(f"backup {name or '(no name)'}", f"the declared ones are {names}", fix)
    return backups[name]


def _parse_backup(path: Path, parsed: yaml_documents.Parsed, name: str, fields: object) -> Backup:
    def refuse(where: yaml_documents.PathInDocument, problem: str, fix: str = "") -> BackupError:
        reason = f"{yaml_documents.format_path(where)}: {problem}"
        return BackupError(f"{path}:{parsed.line(where)}", reason, f"{fix} See {REFERENCE}.".lstrip())

    where: yaml_documents.PathInDocument = ("backups", name)
    if not isinstance(fields, dict):
        raise refuse(where, f"cannot be {fields!r}", "Input should be a mapping.")
    try:
        backup = Backup.model_validate({"name": name, **fields})
    except ValidationError as error:
        at, problem, hint = next(yaml_documents.explain_faults(error, Backup, REFERENCE))
        # The name is the key itself.
        raise refuse(where if at == ("name",) else (*where, *at), problem, hint) from error
    for field, problem in _find_contradictions(backup):
        raise refuse((*where, *field.split(".")), problem)
    return backup


def _find_contradictions(backup: Backup) -> Iterator[tuple[str, str]]:
    source, target, listing = backup.source, backup.target, backup.listing
    if (backup.layout == "dated") != ("{day}" in target.url):
        yield "target.url", "it must contain {day} with layout `dated`, and only then"
    if backup.engine == "aws_batch" and (backup.batch is None or "folder" in (source.kind, target.kind)):
        yield "engine", "aws_batch needs `batch`, and buckets at both ends"
    if listing.kind != "generator" and listing.location is None:
        yield "listing.location", f"{listing.kind} needs it"
    if listing.kind in ("s3_inventory", "manifest_csv") and not str(listing.location).startswith(
        ("/", "s3://")
    ):
        yield "listing.location", "give an absolute path or s3://bucket/prefix"
    # Copies in the root of the source would be listed again.
    is_same_url = target.url.split("{day}")[0].rstrip("/") == source.url.rstrip("/")
    if target.endpoint == source.endpoint and is_same_url:
        yield "target.url", "copies would lie among the source's objects; give them a prefix of their own"
    if backup.lock is not None and target.kind == "folder":
        yield "lock", "a folder has no Object Lock"
