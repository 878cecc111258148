"""Iceberg catalogs other than Nessie: one set of pyiceberg's properties, for pyiceberg and for Spark.

Properties may hold passwords: messages name a property, and the value only where it cannot be secret.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy

from lakeshare_pipelines.errors import IcebergCatalogError
from lakeshare_pipelines.settings import NESSIE, LakeSettings
from lakeshare_pipelines.spark.jars import S3_JARS
from lakeshare_pipelines.spark.stores import list_warehouses, make_catalog_io, make_pyiceberg_properties
from lakeshare_server.locations import find_store_kind
from lakeshare_server.storage import Stores

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

SPARK_TYPES = {"rest": "rest", "sql": "jdbc", "glue": "glue", "hive": "hive"}
"""The types of catalogs, in pyiceberg's spelling and in Spark's."""
DATABASES = {"postgresql": "postgresql", "sqlite": "sqlite-jdbc"}
"""The databases of SQL catalogs, with the jar of their driver."""
WITH_URI = ("rest", "sql", "hive")
OF_PYICEBERG = frozenset(
    {"type", "uri", "warehouse", "echo", "pool_pre_ping", "init_catalog_tables", "schema_version"}
)
"""Properties that are not passed to Spark as they are."""
SPARK_NAMES: Mapping[str, tuple[str, ...]] = {
    "client.region": ("client.region",),
    "s3.region": ("client.region",),
    "glue.region": ("client.region",),
    "client.access-key-id": ("rest.access-key-id", "s3.access-key-id"),
    "client.secret-access-key": ("rest.secret-access-key", "s3.secret-access-key"),
    "client.session-token": ("rest.session-token", "s3.session-token"),
}
"""Spark's names of properties that have another name there."""
DELTA_CATALOG = "spark_catalog"
SIGNED = "rest.sigv4-enabled"
LIBRARIES = frozenset({"botocore", "psycopg", "pyiceberg", "requests", "sqlalchemy", "thrift"})
"""The libraries whose errors mean that a catalog did not respond."""


@dataclass(frozen=True)
class NamedCatalog:
    """A catalog of pyiceberg's configuration. Its name is that of the Spark catalog, too: SQL catalogs keep it."""

    name: str
    type: str
    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def load(cls, settings: LakeSettings) -> Self | None:
        """The catalog of LAKESHARE_ICEBERG_CATALOG; None for Nessie.

        Raises:
            IcebergCatalogError: it is not configured, or a property cannot be used.
        """
        name = settings.iceberg_catalog
        if name == NESSIE:
            return None
        if name == DELTA_CATALOG:
            raise _unusable(name, "Spark has Delta's tables under this name", "Configure it by another name")
        configured = _read_configuration(name)
        properties = {key: value for key, value in configured.items() if isinstance(value, str)}
        for key in sorted(configured.keys() - properties.keys()):
            raise _unusable(name, f"property {key} is not a text", "Give one value that Spark can have, too")
        for key in ("py-catalog-impl", "py-io-impl"):
            if key in properties:
                raise _unusable(name, f"property {key} has no counterpart in Spark", "Remove it")
        return cls(name, _find_type(name, properties), properties)

    @property
    def locations(self) -> tuple[str, ...]:
        """The bucket or folder of its tables, if its properties give one in a store."""
        warehouse = self.properties.get("warehouse", "")
        kind = find_store_kind(warehouse.partition("://")[0]) if "://" in warehouse else None
        return () if kind is None else (warehouse.rstrip("/"),)

    @property
    def jars(self) -> tuple[str, ...]:
        """The jars that Spark needs for it, beside those that it always needs."""
        if self.type == "sql":
            return (DATABASES[self._database.get_backend_name()],)
        return S3_JARS if self.type == "glue" or self.properties.get(SIGNED, "").lower() == "true" else ()

    @property
    def address(self) -> str:
        """Its address without a password, for people; not of a database."""
        return self.properties.get("uri", self.type).partition("?")[0].rpartition("@")[2]

    def make_spark_conf(self, settings: LakeSettings, stores: Stores) -> dict[str, str]:
        """The configuration of the Spark catalog `name`."""
        conf = {
            "type": SPARK_TYPES[self.type],
            "cache-enabled": "false",
            "warehouse": self._warehouse(settings),
            **make_catalog_io(stores, self._list_warehouses(settings)),
        }
        for key, value in self.properties.items():
            if key not in OF_PYICEBERG:
                conf |= dict.fromkeys(SPARK_NAMES.get(key, (key,)), value)
        if self.type == "sql":
            conf |= _make_jdbc_conf(self._database)
        elif "uri" in self.properties:
            conf["uri"] = self.properties["uri"]
        prefix = f"spark.sql.catalog.{self.name}"
        own = {f"{prefix}.{key}": value for key, value in conf.items() if value}
        return {prefix: "org.apache.iceberg.spark.SparkCatalog", **own}

    def open(self, settings: LakeSettings, stores: Stores) -> "Catalog":
        """The catalog in pyiceberg; raises `IcebergCatalogError` when it does not respond."""
        from pyiceberg.catalog import load_catalog

        defaults = {"warehouse": self._warehouse(settings)}
        for location in reversed(self._list_warehouses(settings)):
            defaults |= make_pyiceberg_properties(stores, location)
        chosen = {key: value for key, value in (defaults | dict(self.properties)).items() if value}
        with translate_catalog_errors(self.name):
            opened = load_catalog(self.name, **{**chosen, "type": self.type})
            if isinstance(engine := getattr(opened, "engine", None), sqlalchemy.Engine):
                # A run commits a few times in minutes, and nothing would close the connections in between.
                engine.dispose()
                vars(opened)["engine"] = sqlalchemy.create_engine(engine.url, poolclass=sqlalchemy.NullPool)
            return opened

    @property
    def _database(self) -> sqlalchemy.URL:
        return sqlalchemy.make_url(self.properties["uri"])

    def _list_warehouses(self, settings: LakeSettings) -> tuple[str, ...]:
        """The locations of tables, first that of those whose contract names none."""
        first, *of_contracts = list_warehouses(settings)
        return (*(self.locations or (first,)), *of_contracts)

    def _warehouse(self, settings: LakeSettings) -> str:
        """Where new tables are made; of a REST catalog the name that it knows its warehouse by, which may be none."""
        root = settings.lake_root
        default = "" if self.type == "rest" else f"file://{root}" if root.startswith("/") else root
        return self.properties.get("warehouse", default)


def _read_configuration(name: str) -> Mapping[str, Any]:
    from pyiceberg.utils.config import Config

    try:
        config = Config()
        found, known = config.get_catalog_config(name), sorted(config.get_known_catalogs())
    except Exception as error:  # the parsers of its files have errors of their own
        reason = f"pyiceberg's configuration cannot be read ({type(error).__name__})"
        raise _unusable(name, reason, "Correct .pyiceberg.yaml and the variables PYICEBERG_*") from error
    if found is None:
        listed = ", ".join(known) or "none"
        reason = f"pyiceberg's configuration has no catalog of this name; it has: {listed}"
        variable = f"PYICEBERG_CATALOG__{name.upper()}__URI"
        fix = f"Name it in .pyiceberg.yaml or by {variable} and __TYPE, or correct LAKESHARE_ICEBERG_CATALOG"
        raise _unusable(name, reason, fix)
    return found


def _find_type(name: str, properties: Mapping[str, str]) -> str:
    """The type of a catalog, if not given that of its URI."""
    uri = properties.get("uri", "")
    scheme = uri.partition(":")[0].partition("+")[0].lower()
    by_scheme = {"http": "rest", "https": "rest", "thrift": "hive", **dict.fromkeys(DATABASES, "sql")}
    kind = properties.get("type", by_scheme.get(scheme, "")).lower()
    if kind not in SPARK_TYPES:
        fix = f"Give one of {', '.join(SPARK_TYPES)}"
        raise _unusable(name, f"property type is {kind or 'not given'}", fix)
    if kind in WITH_URI and not uri:
        raise _unusable(
            name, f"property uri is not given, and a catalog of type {kind} needs it", "Give its address"
        )
    if kind != "sql":
        return kind
    if scheme not in DATABASES:
        fix = f"Spark and pyiceberg both reach {' and '.join(DATABASES)}: give a URI of one of them"
        raise _unusable(name, f"property uri begins with {scheme}", fix)
    try:
        database = sqlalchemy.make_url(uri).database
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise _unusable(
            name, "property uri is no URL of a database", "Correct its form, as its port"
        ) from error
    if scheme == "sqlite" and (not database or not Path(database).is_absolute()):
        raise _unusable(name, "property uri names no absolute path", "Write sqlite:////folder/catalog.db")
    return kind


def _make_jdbc_conf(database: sqlalchemy.URL) -> dict[str, str]:
    """A database in the spelling of JDBC, without user and password in the URL."""
    tables = {"jdbc.schema-version": "V1"}
    if database.get_backend_name() == "sqlite":
        return {**tables, "uri": f"jdbc:sqlite:{database.database}"}
    place = sqlalchemy.URL.create(
        "postgresql", host=database.host, port=database.port, database=database.database, query=database.query
    )
    conf = {**tables, "uri": f"jdbc:{place.render_as_string()}"}
    named = {"jdbc.user": database.username, "jdbc.password": database.password}
    return {**conf, **{key: value for key, value in named.items() if value is not None}}


def _unusable(name: str, reason: str, fix: str) -> IcebergCatalogError:
    return IcebergCatalogError(name, reason, fix)


@contextmanager
def translate_catalog_errors(name: str) -> Iterator[None]:
    """Raises IcebergCatalogError for what a catalog or its store raises, without texts that may hold a password.

    pyiceberg's NoSuchTableError, NoSuchNamespaceError and CommitFailedException pass, as do errors of the code itself.
    """
    from pyiceberg import exceptions

    try:
        yield
    except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError, exceptions.CommitFailedException):
        raise
    except exceptions.CommitStateUnknownException as error:
        reason = "it did not confirm a commit, which may have been made"
        raise _unusable(name, reason, "Run again, which completes what was begun") from error
    except (exceptions.ForbiddenError, exceptions.UnauthorizedError, exceptions.OAuthError) as error:
        reason = f"it refuses the request ({type(error).__name__})"
        raise _unusable(name, reason, "Check its credentials and their rights") from error
    except (exceptions.NotInstalledError, ImportError) as error:
        fix = "Install it; for PostgreSQL write postgresql+psycopg:// and install lakeshare[postgres]"
        raise _unusable(name, f"a package that it needs is missing ({error})", fix) from error
    except FileNotFoundError as error:
        reason = "the metadata file that it has of a table is missing"
        raise _unusable(name, reason, "Restore the table's files, or drop the table there") from error
    except Exception as error:  # each kind of catalog has errors of its own library
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in LIBRARIES:
            raise
        reason = f"it or its store did not respond ({type(error).__name__})"
        fix = "Run again when it does, which completes what was begun; `lakeshare doctor` checks it"
        raise _unusable(name, reason, fix) from error
