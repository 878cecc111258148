"""How an Iceberg client gets at the files of a table: temporary credentials, signed requests, or a disk it shares.

Credentials open the whole folder, unpublished files too, so they are for tables that grant directory access. All other
tables in S3 are read by requests that the server signs one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lakeshare_server.access.directory import Folder, folder_refusal
from lakeshare_server.access.iceberg import LoadedTable
from lakeshare_server.access.view import TableView
from lakeshare_server.errors import Unserveable
from lakeshare_server.settings import ServerSettings
from lakeshare_server.signing import Signers, TemporaryCredentials
from lakeshare_server.stores import Place, place_of
from lakeshare_server.stores.locations import GCS, LOCAL, S3

FilesWay = Literal["credentials", "signed requests", "disk"]
SIGNING = {"s3.remote-signing-enabled": "true", "s3.signer": "S3V4RestSigner"}


@dataclass(frozen=True)
class ClientStorage:
    """The parts of a load-table answer that say how its files are read; credentials are never shown in logs."""

    config: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] | None = field(default=None, repr=False)


NOTHING = ClientStorage()


def needs_no_storage(view: TableView, table: LoadedTable) -> bool:
    """Whether clients read the files by their paths alone: those of the server's own disk."""
    return table.location.startswith(("/", "file:")) and not view.is_restricted


def planning_config(view: TableView, table: LoadedTable, settings: ServerSettings) -> Mapping[str, str]:
    """Where a client is to plan its scans: Java's obey, whatever they were set to; PyIceberg's choose themselves."""
    if view.is_restricted or (settings.iceberg_planning == "server" and table.is_plannable):
        return {"scan-planning-mode": "server"}
    return {}


def files_way(view: TableView, folder: Folder, signers: Signers, settings: ServerSettings) -> FilesWay:
    """How Iceberg clients get at the files of a table.

    Raises:
        Unserveable: there is no way to read just what was published.
        Unavailable: what tells is not there now.
    """
    place = place_of(folder.location, settings.azure_account)
    if place.kind == LOCAL and not view.is_restricted:
        return "disk"
    refusal = folder_refusal(view, folder, signers)
    if refusal is None:
        return "credentials"
    if place.kind != S3:
        raise Unserveable(
            f"{view.entry.path} cannot be read by Iceberg clients: {refusal}.", "Query it by Delta Sharing."
        )
    return "signed requests"


def client_storage(
    view: TableView,
    table: LoadedTable,
    folder: Folder,
    signers: Signers,
    settings: ServerSettings,
    sign_at: str,
) -> ClientStorage:
    """What a client needs to read the table; `sign_at` is where it has requests signed, below the catalog's URL.

    Raises:
        Unserveable: there is no way to read just what was published.
        Unavailable: credentials cannot be had now.
    """
    way = files_way(view, folder, signers, settings)
    if way == "disk":
        return NOTHING
    place = place_of(table.location, settings.azure_account)
    config = signers.s3_client_config(place) if place.kind == S3 else {}
    if way == "credentials":
        granted = signers.vend(place.location, settings.url_life_s)
        return ClientStorage(config, credential_config(granted, place))
    return ClientStorage(
        {
            **config,
            **SIGNING,
            "s3.signer.uri": settings.iceberg_url(),
            "s3.signer.endpoint": sign_at,
        }
    )


def vended_storage(
    view: TableView, table: LoadedTable, folder: Folder, signers: Signers, settings: ServerSettings
) -> ClientStorage:
    """Fresh credentials alone.

    Raises:
        Unserveable: this table hands out none; says why.
        Unavailable: they cannot be had now.
    """
    place = place_of(table.location, settings.azure_account)
    refusal = folder_refusal(view, folder, signers)
    if refusal is not None:
        raise Unserveable(f"{view.entry.path} hands out no credentials: {refusal}.", "Load the table again.")
    return ClientStorage({}, credential_config(signers.vend(place.location, settings.url_life_s), place))


def credential_config(granted: TemporaryCredentials, place: Place) -> dict[str, str]:
    """Temporary credentials in the names that Iceberg's clients have for them."""
    fields, ends = granted.fields, str(granted.expires_at_ms)
    if place.kind == S3:
        return {
            "s3.access-key-id": fields["accessKeyId"],
            "s3.secret-access-key": fields["secretAccessKey"],
            "s3.session-token": fields["sessionToken"],
            "s3.session-token-expires-at-ms": ends,
        }
    if place.kind == GCS:
        return {"gcs.oauth2.token": fields["oauthToken"], "gcs.oauth2.token-expires-at": ends}
    host = place.root.partition("@")[2]
    return {f"adls.sas-token.{host}": fields["sasToken"], f"adls.sas-token-expires-at-ms.{host}": ends}
