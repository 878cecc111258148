"""Settings of the state and the server, shared by pipelines and server, built once at the edge."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from lakeshare_server.locations import parse_lake_location
from lakeshare_server.telemetry.logs import LogFormat
from lakeshare_server.yaml_documents import written_as


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents for their owner only; an existing folder keeps its mode."""
    for path in reversed((folder, *folder.parents)):
        path.mkdir(mode=0o700, exist_ok=True)


# Fixed, because profiles and links that were sent contain these paths.
ICEBERG_PATH = "/iceberg"
TOKEN_PATH = "/oauth/token"  # noqa: S105  a path below the endpoint of the protocol
ACTIVATION_PATH, PORTAL_PATH, CONSOLE_PATH = "/activate", "/portal", "/console"
# Of the bytes of local files, below the endpoint of the protocol.
FILES_PATH = "/files"

AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().resolve())]
# Normalised, without a slash at its end.
LakeLocation = Annotated[
    str, BeforeValidator(str), AfterValidator(lambda text: parse_lake_location(text).location)
]
# Without a query or a password: the value is shown in messages and put before the paths of URLs.
Endpoint = Annotated[
    str, written_as(r"^https?://[^/?#@\s]+(/[^?#\s]*)?$", "https://HOST, with a port or a path")
]


class StoreSettings(BaseSettings):
    """Object stores; keys come from each vendor's default chain.

    Every field is read from the environment variable `LAKESHARE_<FIELD>` or from `.env`.
    """

    # An empty variable is not set: lines of .env.example without `#`, and unset variables that are passed on.
    model_config = SettingsConfigDict(
        env_prefix="LAKESHARE_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        validate_default=True,
        use_attribute_docstrings=True,
    )

    s3_endpoint: Endpoint | None = None
    """URL of an S3-compatible store; boto3's usual one, AWS, by default."""
    s3_public_endpoint: Endpoint | None = None
    """How recipients reach the S3 store, when not as the server does."""
    s3_region: str | None = Field(None, pattern=r"^[a-z0-9-]+$")
    """Region of all S3 buckets; each bucket's own on AWS by default."""
    s3_path_style: bool | None = None
    """Whether buckets stand in the path of URLs; by default unless the store is AWS."""
    s3_request_payer: bool = False
    """Pay for requests to requester-pays buckets."""
    s3_role_arn: str | None = None
    """Role assumed for directory access; a federation token is asked for by default."""
    s3_sts_endpoint: Endpoint | None = None
    """URL of STS; S3_ENDPOINT by default if that is set, else boto3's usual one."""
    gcs_endpoint: Endpoint | None = None
    """URL of a stand-in for Google Cloud Storage; Google's by default."""
    gcs_public_endpoint: Endpoint | None = None
    """How recipients reach Google Cloud Storage, when not as the server does."""
    gcs_hmac_id: str | None = None
    """Id of an HMAC key of Google's; it signs URLs hundreds of times faster than a private key."""
    gcs_hmac_secret: SecretStr | None = None
    """Secret of GCS_HMAC_ID."""
    azure_account: str | None = Field(None, pattern=r"^[a-z0-9-]+$")
    """Storage account of locations that name a container only."""
    azure_account_key: SecretStr | None = None
    """Key of AZURE_ACCOUNT; Azure's default chain of identities is used by default."""
    azure_sas_token: SecretStr | None = None
    """Shared access signature to read AZURE_ACCOUNT with; it signs no URLs."""
    azure_endpoint: Endpoint | None = None
    """URL of the blob service of AZURE_ACCOUNT; Azure's by default."""
    azure_public_endpoint: Endpoint | None = None
    """How recipients reach the blob service of AZURE_ACCOUNT, when not as the server does."""
    outside_answer_s: float = Field(15, gt=0, le=600)
    """How long one call of a store, catalog, token service or issuer may take, in seconds."""

    equality_delete_bytes: int = Field(4_294_967_296, ge=1)
    """Most bytes of key columns read to apply a table's equality deletes, in each attempt."""
    equality_delete_s: float = Field(60, gt=0)
    """Most seconds spent on applying a table's equality deletes, in each attempt."""


class StateSettings(StoreSettings):
    """The state folder, the database and the place of the tables, which pipelines and server share."""

    model_config = SettingsConfigDict(populate_by_name=True)

    state_dir: AbsolutePath = Path(".lakeshare")
    """Folder of everything lakeshare keeps."""
    database_url: str | None = None
    """SQLAlchemy URL of the catalog and ledger; SQLite in the state folder by default."""

    warehouse: LakeLocation | None = Field(
        None,
        validation_alias=AliasChoices("LAKESHARE_WAREHOUSE", "LAKESHARE_WAREHOUSE_DIR"),
        description="Where the tables are: a folder, s3://bucket/prefix, gs://bucket/prefix or "
        "abfss://container@account.dfs.core.windows.net/prefix; `warehouse` in the state folder by default.",
    )

    index_cache_bytes: int = Field(10_737_418_240, ge=1)
    """Most bytes of indexes from other hosts, and of those built on demand for old and followed versions."""

    evidence_key_file: AbsolutePath | None = None
    """Private Ed25519 key that signs publications, a PEM file; made and kept in the state folder by default."""
    evidence_digests: Literal["local", "stored", "read", "none"] = "local"
    """SHA-256 of files in evidence: local reads new files on disk, stored also asks S3, read reads all, or none."""

    log_format: LogFormat = "text"
    """Form of the log on stderr: text, or json with one object per line."""

    audit_retention_days: int | None = Field(None, ge=1)
    """Days that audit events are kept, by the nightly janitor and `lakeshare audit prune`; all by default."""

    silent_days: int = Field(
        7,
        ge=1,
        description="Days without a request after which the check `silent_recipients` reports a recipient.",
    )
    usage_spike: float = Field(
        5.0,
        gt=1,
        description="Multiple of a recipient's usual daily bytes of signed files from which the check `usage_spikes` "
        "reports it.",
    )

    @property
    def catalog_url(self) -> str:
        """The SQLAlchemy URL of the catalog."""
        return self.database_url or f"sqlite:///{self.state_dir / 'lakeshare.db'}"

    @property
    def lake_root(self) -> str:
        """The location below which the tables are, without a slash at its end."""
        return self.warehouse or str(self.state_dir / "warehouse")

    @property
    def shared_root(self) -> str | None:
        """The location of file indexes and deletion vectors for all hosts: beside tables in a store, else None."""
        return None if self.lake_root.startswith("/") else f"{self.lake_root}/_lakeshare"

    @property
    def index_dir(self) -> Path:
        """Folder of the content-addressed file indexes."""
        return self.state_dir / "index"

    @property
    def audit_dir(self) -> Path:
        """Folder of the journals with events that are not in the database yet."""
        return self.state_dir / "audit"

    @property
    def first_key_file(self) -> Path:
        """File of the first administrator's key, for a server that was not started on a terminal."""
        return self.state_dir / "first-admin.key"

    @property
    def vectors_dir(self) -> Path:
        """Folder of the deletion vectors written for recipients."""
        return self.state_dir / "vectors"

    @property
    def vectors_location(self) -> Path | str:
        """Where large deletion vectors of publications are: beside tables in a store, else in `vectors_dir`."""
        return self.vectors_dir if self.shared_root is None else f"{self.shared_root}/vectors"


class ServerSettings(StateSettings):
    """Addresses, signing, paging and limits of the sharing server."""

    host: str = "127.0.0.1"
    """Address the server listens on."""
    port: int = Field(8765, ge=0, le=65535)
    """Port the server listens on; 0 takes a free one."""
    endpoint: str = Field("/delta-sharing", pattern=r"^/[^?#]*$")
    """Path prefix of the protocol."""
    public_url: str | None = None
    """How recipients reach the server, without the prefix; http://HOST:PORT by default."""
    provider_name: str | None = None
    """Who shares, as pages for recipients say it; the host of PUBLIC_URL by default."""
    provider_contact: str | None = None
    """Contact for recipients on their pages, like data@example.com; no contact by default."""
    url_life_s: int = Field(3600, ge=60, le=604800)
    """Life of a signed file URL, in seconds; Spark jobs that read for longer need more than 900."""
    signing_key: SecretStr | None = None
    """Key that signs local file URLs, 32 bytes or more; made and kept in the state folder by default."""
    page_size: int = Field(500, ge=1, le=500)
    """Most items in one page of a listing."""
    page_files: int = Field(10_000, ge=1)
    """Most files in one page of a paged query, change feed or Iceberg scan."""
    iceberg_planning: Literal["server", "client"] = "server"
    """Who plans scans of Iceberg tables where clients leave it to the catalog: server or client."""
    page_token_life_s: int = Field(259_200, ge=60)
    """Life of a page token, in seconds."""
    refresh_token_life_s: int = Field(3600, ge=60)
    """Life of a refresh token, in seconds."""
    files_also_in: str = Field(
        "",
        description="Stores and local folders, by spaces, that tables may name files in beside their own, like "
        "s3://bucket /srv/lake.",
    )
    metrics_token: SecretStr | None = None
    """Bearer token that `/metrics` asks for; without one, only programs of this host may read it."""
    metrics_refresh_s: float = Field(15, ge=0, le=3600)
    """How often `/metrics` reads the state of the lake from the database, in seconds, and only when it is asked."""
    metrics_tables: int = Field(200, ge=0, le=10_000)
    """Most shared tables whose age and freshness goal `/metrics` has, the first by name."""
    telemetry_names: bool = False
    """Whether metrics and traces name recipients; without names by default."""
    trusted_proxies: str = Field(
        "",
        description="Addresses and networks of reverse proxies, by spaces, whose X-Forwarded-For is believed, like "
        "10.0.0.5 fd00::/64.",
    )
    access_token_life_s: int = Field(3600, ge=60, le=86_400)
    """Life of an OAuth access token given for a client secret, in seconds."""
    requests_per_minute: int | None = Field(None, ge=1)
    """Most requests of a recipient in a minute; no limit by default."""
    urls_per_day: int | None = Field(None, ge=1)
    """Most files a recipient may get URLs of in a day (UTC); no limit by default."""
    bytes_per_day: int | None = Field(None, ge=1)
    """Most bytes of files a recipient may get URLs of in a day (UTC); no limit by default."""
    guesses_per_minute: int = Field(60, ge=1)
    """Wrong tokens an address may try in a minute before it has to wait for the next."""
    compress_lines: bool = True
    """Compress responses with files (zstd, gzip) for clients that accept it and are not on this host."""
    slow_client_s: float = Field(30, gt=0, le=3600)
    """How long a client may take to send its headers, and its body, in seconds."""
    request_wait_s: float = Field(60, gt=0, le=3600)
    """How long a request may wait for its table's store or catalog before it is answered 503, in seconds."""
    min_free_bytes: int = Field(67_108_864, ge=0)
    """Free bytes on the disk of the state folder below which `/readyz` says that the server is not ready."""
    connections_per_address: int = Field(
        1000,
        ge=1,
        description="Most open connections from one address (IPv6: one /64) to each worker; those of TRUSTED_PROXIES "
        "are not counted.",
    )
    oidc_private_hosts: str = Field(
        "",
        description="Hosts of OIDC issuers, by spaces, that may be in a private network or without TLS, like "
        "idp.corp login.corp:8080.",
    )
    webhook_interval_s: float = Field(5, ge=0, le=3600)
    """How often the server looks for events of webhooks and sends them, in seconds; 0 turns webhooks off."""
    webhook_private_hosts: str = Field(
        "",
        description="Hosts of webhooks, by spaces, that may be in a private network or without TLS, like "
        "hooks.corp hooks.corp:8080.",
    )
    webhook_answer_s: float = Field(10, gt=0, le=60)
    """How long one attempt of a webhook may take, in seconds."""
    webhook_retry_hours: int = Field(72, ge=1, le=720)
    """How long an event is sent again until it is a dead letter, in hours."""
    webhook_senders: int = Field(8, ge=1, le=64)
    """Webhooks that one worker sends to at the same time."""
    oidc_leeway_s: int = Field(60, ge=0, le=600)
    """How far an issuer's clock may be from ours, in seconds."""
    admin_oidc_issuer: Endpoint | None = None
    """OIDC issuer whose tokens administer, as they name it; keys only by default."""
    admin_oidc_audiences: str = ""
    """Audiences, by spaces, of which an administrator's token has one."""
    admin_oidc_name_claim: str = "sub"
    """Claim that identifies an administrator; one that its owner cannot choose."""
    admin_oidc_role_claim: str = "roles"
    """Claim with an administrator's roles or groups, like realm_access.roles."""
    admin_oidc_owners: str = "lakeshare-owner"
    """Values of the claim that make an owner."""
    admin_oidc_stewards: str = "lakeshare-steward"
    """Values of the claim that make a steward."""
    admin_oidc_auditors: str = "lakeshare-auditor"
    """Values of the claim that make an auditor."""
    console_oidc_client_id: str | None = None
    """Client id at ADMIN_OIDC_ISSUER, to sign in to the console by it; administrators' keys only by default."""
    console_oidc_client_secret: SecretStr | None = None
    """Secret of CONSOLE_OIDC_CLIENT_ID; public clients have none."""
    console_oidc_scopes: str = "openid"
    """Scopes, by spaces, that bring the claims of ADMIN_OIDC_NAME_CLAIM and ADMIN_OIDC_ROLE_CLAIM into the ID token."""
    console_session_s: int = Field(28_800, ge=300, le=604_800)
    """How long a session of the console lasts, in seconds."""
    console_job_s: int = Field(7200, ge=60, le=604_800)
    """How long a job that the console starts may take, like another audit of a staged set, in seconds."""
    dagster_url: Endpoint | None = None
    """Where the Dagster UI is, for links."""
    max_body_bytes: int = Field(2_097_152, ge=1024)
    """Largest request body accepted, in bytes."""

    def base_url(self) -> str:
        """The URL of the protocol's root for recipients."""
        return self._root() + self.endpoint.rstrip("/")

    def iceberg_url(self) -> str:
        """The URL of the Iceberg REST catalog, without `/v1`."""
        return self._root() + ICEBERG_PATH

    def activation_url(self, code: str) -> str:
        """The link that gives a recipient its profile."""
        return f"{self._root()}{ACTIVATION_PATH}/{code}"

    def console_url(self) -> str:
        """The URL of the console."""
        return self._root() + CONSOLE_PATH

    def feed_url(self, share: str) -> str:
        """The feed of a share."""
        return f"{self.base_url()}/shares/{quote(share)}/publications"

    def portal_url(self, table: str | None = None) -> str:
        """The recipients' portal; at a table, `share.schema.table`, if one is given."""
        return self._root() + PORTAL_PATH + ("" if table is None else f"#{quote(table)}")

    def root_path(self) -> str:
        """The path before the server's paths for recipients; empty unless a proxy removes a prefix."""
        return urlsplit(self._root()).path

    def host_name(self) -> str:
        return urlsplit(self._root()).hostname or self.host

    def _root(self) -> str:
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")


def read_log_format() -> LogFormat:
    """`LAKESHARE_LOG_FORMAT`; text if the settings cannot be used, which the command itself reports."""
    try:
        return StateSettings().log_format
    except ValidationError:
        return "text"
