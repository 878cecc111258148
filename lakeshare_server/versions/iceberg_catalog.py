"""Tables in Iceberg catalogs that pyiceberg knows by name: REST, Glue, Hive, SQL and the others it speaks to.

Catalogs are configured as pyiceberg's own documentation says, in `.pyiceberg.yaml` or by PYICEBERG_CATALOG__NAME__…
variables, so credentials are never in our database.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from lakeshare_server.errors import BadRequest, LakeshareError, Unavailable, Unserveable
from lakeshare_server.outbound import Service
from lakeshare_server.settings import StoreSettings
from lakeshare_server.versions.metadata_source import BranchState, Pointer

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

# As AWS names it.
REFUSED = ("AccessDeniedException", "InvalidSignatureException", "UnrecognizedClientException")
GLUE_RETRIES = "glue.max-retries"
CONFIGURE = (
    "Name it in .pyiceberg.yaml or by PYICEBERG_CATALOG__{variable}__URI and __TYPE, for the server, too."
)


class CatalogTable:
    """One table of a catalog."""

    root: str | None = None

    def __init__(
        self, name: str, identifier: tuple[str, ...], settings: StoreSettings, service: Service
    ) -> None:
        self._name, self._identifier, self._settings = name, identifier, settings
        self._service = service
        self._opened: Catalog | None = None

    def current(self, known: Pointer | None) -> Pointer:
        """The metadata file that the catalog names.

        Raises:
            BadRequest: the catalog is not configured, or not as it has to be.
            Unserveable: it has no such table, or refuses us.
            Unavailable: it does not answer.
        """
        location = self._service.call(self._current_location)
        return Pointer(location, location)

    def states_since(self, commit: str | None, until: Pointer) -> Sequence[BranchState] | None:
        """None: the metadata tells them."""
        return None

    def _metadata_location(self) -> str:
        opened = self._opened = self._opened or self._open()
        # Glue names the file in the table's parameters; pyiceberg would go on and read it.
        glue = getattr(opened, "glue", None)
        if glue is not None:
            return self._told_by_glue(glue)
        location = opened.load_table(self._identifier).metadata_location
        if not location:
            raise self._lasting("has no metadata file")
        return location

    def _told_by_glue(self, glue: Any) -> str:
        from pyiceberg.exceptions import NoSuchTableError

        *namespace, table = self._identifier
        try:
            found = glue.get_table(DatabaseName=".".join(namespace), Name=table)["Table"]
        except glue.exceptions.EntityNotFoundException as error:
            raise NoSuchTableError(".".join(self._identifier)) from error
        location: str | None = found.get("Parameters", {}).get("metadata_location")
        if not location:
            raise self._lasting("is no Iceberg table")
        return location

    def _open(self) -> "Catalog":
        from pyiceberg.catalog import load_catalog

        properties = {**_usual(self._settings), **catalog_configuration(self._name)}
        # Botocore wants a number, and variables of the environment are texts.
        properties[GLUE_RETRIES] = int(properties[GLUE_RETRIES])
        return load_catalog(self._name, **properties)

    def _current_location(self) -> str:
        try:
            return self._metadata_location()
        except Exception as error:  # every catalog has errors of its own, of which only the kind is told
            raise self._told(error) from error

    def _told(self, error: Exception) -> LakeshareError:
        from pyiceberg import exceptions

        if isinstance(error, LakeshareError):
            return error
        if isinstance(error, exceptions.NoSuchTableError | exceptions.NoSuchNamespaceError):
            return self._lasting("is not in its catalog")
        # A connection that is made anew may do what the old one could not.
        self._opened = None
        refusals = exceptions.ForbiddenError, exceptions.UnauthorizedError, exceptions.OAuthError
        if isinstance(error, refusals) or _code(error) in REFUSED:
            return self._lasting(f"is refused to our credentials ({type(error).__name__} {_code(error)})")
        if isinstance(error, exceptions.NotInstalledError):
            return BadRequest("LOCATION", f"iceberg:{self._name}", f"{error}.")
        # The words of others may show what they were given: passwords, too.
        if isinstance(error, ValueError | TypeError):
            hint = (
                f"pyiceberg cannot use what is configured ({type(error).__name__}). {_configure(self._name)}"
            )
            return BadRequest("LOCATION", f"iceberg:{self._name}", hint)
        return self._passing(f"{type(error).__name__} {_code(error)}".rstrip())

    def _lasting(self, what: str) -> Unserveable:
        # All of the place in one word, which recipients are not told.
        return Unserveable(
            f"iceberg:{self._name}/{'.'.join(self._identifier)} {what}.",
            "Check the table's name, and the catalog's configuration where the server runs.",
        )

    def _passing(self, why: str) -> Unavailable:
        return Unavailable(
            f"the Iceberg catalog {self._name} cannot be asked ({why})",
            f"Try again. {_configure(self._name)}",
        )


class CatalogNamespace(CatalogTable):
    """A namespace of a catalog, for the names of its tables."""

    def __init__(
        self, name: str, namespace: tuple[str, ...], settings: StoreSettings, service: Service
    ) -> None:
        super().__init__(name, (*namespace, "*"), settings, service)

    def tables(self) -> list[str]:
        """The names of the tables, without those of namespaces inside it.

        Raises:
            BadRequest, Unserveable, Unavailable: as `CatalogTable.current`.
        """
        return sorted(self._service.call(self._list_names))

    def _list_names(self) -> list[str]:
        try:
            opened = self._opened = self._opened or self._open()
            return [identifier[-1] for identifier in opened.list_tables(self._identifier[:-1])]
        except Exception as error:  # every catalog has errors of its own, of which only the kind is told
            raise self._told(error) from error


def catalog_configuration(name: str) -> dict[str, Any]:
    """What pyiceberg's configuration says of a catalog now.

    Raises:
        BadRequest: it is not configured.
    """
    from pyiceberg.utils.config import Config

    config = Config()
    try:
        found = config.get_catalog_config(name)
        known = ", ".join(sorted(config.get_known_catalogs())) or "none"
    except ValueError as error:
        raise BadRequest("LOCATION", name, f"pyiceberg's configuration cannot be used: {error}") from error
    if found is None:
        hint = f"No Iceberg catalog of this name is configured; known are: {known}. {_configure(name)}"
        raise BadRequest("LOCATION", name, hint)
    return cast(dict[str, Any], dict(found))


def _usual(settings: StoreSettings) -> Mapping[str, str]:
    """What the server's own settings say for catalogs that do not say it themselves."""
    told = {"s3.endpoint": settings.s3_endpoint, "s3.region": settings.s3_region}
    # Ten attempts, pyiceberg's own number, take twenty seconds.
    return {GLUE_RETRIES: "2"} | {name: value for name, value in told.items() if value}


def _configure(name: str) -> str:
    return CONFIGURE.format(variable=name.upper().replace("-", "_"))


def _code(error: Exception) -> str:
    """The code in an error of AWS, which has one class for all."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
