"""Where the state is and how the server answers; shared by pipelines and server, built once at the edge."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def _absolute(path: Path) -> Path:
    return path.expanduser().resolve()


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class StateSettings(BaseSettings):
    """The state folder and the database: what pipelines and server must agree on.

    Every field is read from the environment variable `LAKESHARE_<FIELD>` or from `.env`.
    """

    model_config = SettingsConfigDict(
        env_prefix="LAKESHARE_", env_file=".env", extra="ignore", validate_default=True
    )

    state_dir: AbsolutePath = Field(Path(".lakeshare"), description="Folder of everything lakeshare keeps.")
    database_url: str | None = Field(
        None, description="SQLAlchemy URL of the catalog and ledger; SQLite in the state folder by default."
    )

    @property
    def catalog_url(self) -> str:
        """The SQLAlchemy URL in force."""
        return self.database_url or f"sqlite:///{self.state_dir / 'lakeshare.db'}"

    @property
    def index_dir(self) -> Path:
        """Folder of the content-addressed file indexes."""
        return self.state_dir / "index"


class ServerSettings(StateSettings):
    """How the sharing server listens, signs and pages."""

    host: str = Field("127.0.0.1", description="Address the server listens on.")
    port: int = Field(8765, ge=0, le=65535, description="Port the server listens on; 0 takes a free one.")
    endpoint: str = Field("/delta-sharing", description="Path prefix of the protocol.", pattern=r"^/[^?#]*$")
    public_url: str | None = Field(
        None, description="How recipients reach the server, without the prefix; http://HOST:PORT by default."
    )
    url_life_s: int = Field(3600, ge=60, le=604800, description="Life of a signed file URL, in seconds.")
    signing_key: SecretStr | None = Field(
        None, description="Key that signs local file URLs; made and kept in the state folder by default."
    )
    page_size: int = Field(500, ge=1, le=500, description="Most items in one page of a listing.")
    max_body_bytes: int = Field(2_097_152, ge=1024, description="Largest request body accepted, in bytes.")

    def base_url(self) -> str:
        """The URL of the protocol's root as recipients see it."""
        root = self.public_url or f"http://{self.host}:{self.port}"
        return root.rstrip("/") + self.endpoint.rstrip("/")


def described_settings(settings_class: type[BaseSettings]) -> dict[str, tuple[Any, str]]:
    """`{environment variable: (default, description)}` of a settings class, for docs and their test."""
    return {
        f"LAKESHARE_{name.upper()}": (field.default, field.description or "")
        for name, field in settings_class.model_fields.items()
    }
