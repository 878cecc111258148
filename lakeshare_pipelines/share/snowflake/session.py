"""A session with Snowflake through its own connector; what it answers in errors becomes ours, without secrets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from lakeshare_pipelines.errors import SnowflakeError
from lakeshare_pipelines.settings import LakeSettings

if TYPE_CHECKING:
    from snowflake.connector import SnowflakeConnection

TAG = "lakeshare"
REQUEST_S, STATEMENT_S = 60, 900
NOT_ALLOWED, NOT_FOUND, NO_WAREHOUSE = 3001, (2003, 2043), 606
# SQLSTATE classes of logins that were refused, and of networks that fail.
LOGIN, NETWORK = "28", ("08", "HYT")
REMEDIES = {
    NOT_ALLOWED: "Grant LAKESHARE_SNOWFLAKE_ROLE usage of the warehouse, database, schema, volume and integration, "
    "CREATE ICEBERG TABLE in the schema, and ownership of the table.",
    **dict.fromkeys(
        NOT_FOUND,
        "Make what it names, or grant LAKESHARE_SNOWFLAKE_ROLE its usage: Snowflake does not tell the two apart. "
        "`lakeshare snowflake ddl TABLE --with-integrations` prints the statements for volume and integration.",
    ),
    NO_WAREHOUSE: "Set LAKESHARE_SNOWFLAKE_WAREHOUSE to one that the role may use.",
}


class SnowflakeSession:
    """Runs statements one by one; `query_ids` are Snowflake's own names of them, in order."""

    def __init__(self, connection: "SnowflakeConnection", settings: LakeSettings) -> None:
        self._connection, self._settings = connection, settings
        self.query_ids: list[str] = []

    def run(self, statement: str, *bound: str) -> Any:
        """The first value of the first row that a statement answers with, None when there is none.

        Raises:
            SnowflakeError: Snowflake refused it, or did not answer.
        """
        from snowflake.connector import Error

        with self._connection.cursor() as cursor:
            try:
                cursor.execute(statement, bound or None)
                row = cursor.fetchone()
            except Error as error:
                raise told(error, self._settings, statement) from None
            if cursor.sfqid:
                self.query_ids.append(cursor.sfqid)
        return row[0] if row else None


@contextmanager
def snowflake_session(settings: LakeSettings) -> Iterator[SnowflakeSession]:
    """A session as the settings say, logged out at the end of the block.

    Raises:
        SnowflakeError: a setting is missing, the connector is not installed, or Snowflake refused the login.
    """
    parameters = connect_parameters(settings)
    try:
        from snowflake.connector import Error, connect
    except ImportError:
        raise SnowflakeError(
            "snowflake-connector-python is not installed", "Install lakeshare[snowflake] where Dagster runs."
        ) from None
    try:
        connection = connect(**parameters)
    except Error as error:
        raise told(error, settings, None) from None
    try:
        yield SnowflakeSession(connection, settings)
    finally:
        connection.close()


def connect_parameters(settings: LakeSettings) -> dict[str, Any]:
    """What the connector is told.

    Raises:
        SnowflakeError: names the setting that is missing.
    """
    if not settings.snowflake_account or not settings.snowflake_user:
        missing = "ACCOUNT" if not settings.snowflake_account else "USER"
        raise SnowflakeError(f"LAKESHARE_SNOWFLAKE_{missing} is not set", "Set it where Dagster runs.")
    given = {
        "account": settings.snowflake_account,
        "user": settings.snowflake_user,
        "role": settings.snowflake_role,
        "warehouse": settings.snowflake_warehouse,
        "login_timeout": settings.snowflake_login_s,
        "request_timeout": REQUEST_S,
        "query_timeout": STATEMENT_S,
        "client_session_keep_alive": False,
        "enable_server_session_keep_alive_auto_detection": False,
        # What is done here is in Snowflake's history, under this tag; nothing else is reported to anybody.
        "session_parameters": {"QUERY_TAG": TAG, "CLIENT_TELEMETRY_ENABLED": False},
        **_credentials(settings),
        **_address(settings.snowflake_url),
    }
    return {name: value for name, value in given.items() if value is not None}


def told(error: Any, settings: LakeSettings, statement: str | None) -> SnowflakeError:
    """The connector's error as ours: what Snowflake says, of which statement, and the remedy."""
    code, state = getattr(error, "errno", None), str(getattr(error, "sqlstate", None) or "")
    said = " ".join(str(getattr(error, "raw_msg", None) or error).split())
    for secret in _secrets(settings):
        said = said.replace(secret, "…")
    if state.startswith(LOGIN):
        return SnowflakeError(
            f"the login of {settings.snowflake_user} was refused: {said}",
            "Check LAKESHARE_SNOWFLAKE_ACCOUNT, _USER, and _PASSWORD or _PRIVATE_KEY_FILE.",
        )
    if state.startswith(NETWORK):
        return SnowflakeError(
            f"there is no connection: {said}",
            "Check the network and LAKESHARE_SNOWFLAKE_ACCOUNT or _URL; then run this again.",
            passing=True,
        )
    query = getattr(error, "sfqid", None)
    what = f"{statement.splitlines()[0]} failed" if statement else "the login failed"
    history = (
        f"Snowflake's query history has it as {query}."
        if query
        else "Snowflake's query history may tell more."
    )
    remedy = REMEDIES.get(code, "") if isinstance(code, int) else ""
    return SnowflakeError(f"{what}: {said} [{code}]", f"{remedy} {history}".strip())


def _credentials(settings: LakeSettings) -> dict[str, Any]:
    key, password = settings.snowflake_private_key_file, settings.snowflake_password
    if (key is None) == (password is None):
        raise SnowflakeError(
            f"{'neither' if key is None else 'both'} LAKESHARE_SNOWFLAKE_PASSWORD and _PRIVATE_KEY_FILE are set",
            "Set one of them.",
        )
    if key is None:
        return {"password": _secret(password)}
    return {
        "authenticator": "SNOWFLAKE_JWT",
        "private_key_file": str(key),
        "private_key_password": _secret(settings.snowflake_private_key_passphrase),
    }


def _address(url: str | None) -> dict[str, Any]:
    if url is None:
        return {}
    parts = urlsplit(url)
    return {"protocol": parts.scheme, "host": parts.hostname, "port": parts.port}


def _secrets(settings: LakeSettings) -> list[str]:
    held = (settings.snowflake_password, settings.snowflake_private_key_passphrase)
    return [text for text in map(_secret, held) if text]


def _secret(held: SecretStr | None) -> str | None:
    return None if held is None else held.get_secret_value()
