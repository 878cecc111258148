"""The texts of shares and recipients that every surface sets and prints under one name.

A text is declared here, and a migration adds its column. SQL, the files of `lakeshare apply`, the admin API, options of
commands, the portal, the check of its value and the audit log follow from the declaration (ADR 78).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, create_model

from lakeshare_server.errors import BadRequest

TextOwner = Literal["share", "recipient"]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class TextField:
    """A text of a share or a recipient; None where it has none.

    `name` is its column, and its field in files and in JSON; SQL writes it like `DISPLAY NAME`, commands like
    `--display-name`. `pattern` matches the whole text. `from_file`: its option is the path of a text file, and DESCRIBE
    leaves it out. `in_portal`: the recipient sees it there.
    """

    name: str
    description: str
    example: str
    max_chars: int = 255
    pattern: str | None = None
    from_file: bool = False
    in_portal: bool = False

    @property
    def keywords(self) -> tuple[str, ...]:
        """Its name in SQL."""
        return tuple(self.name.upper().split("_"))

    @property
    def label(self) -> str:
        """Its name for people."""
        return self.name.replace("_", " ").capitalize()

    def check(self, field: str, text: str | None) -> str | None:
        """Returns a text that can be stored; raises BadRequest for one that is blank, too long or of another form."""
        if text is not None:
            fits = isinstance(text, str) and 0 < len(text.strip()) <= len(text) <= self.max_chars
            if not fits or (self.pattern is not None and re.fullmatch(self.pattern, text) is None):
                form = "a text" if self.pattern is None else f"one like {self.example},"
                raise BadRequest(field, text, f"Give {form} of 1 to {self.max_chars} characters.")
        return text


TEXT_FIELDS: Mapping[TextOwner, tuple[TextField, ...]] = {
    "share": (
        TextField("display_name", "The name shown to recipients.", "Sales of all branches"),
        TextField(
            "notice",
            "What recipients have to know now, in the portal and as a property of the tables.",
            "The load of 5 March is late.",
            max_chars=2000,
        ),
    ),
    "recipient": (
        TextField(
            "agreement",
            "Text to accept at activation.",
            "For research only.",
            max_chars=100_000,
            from_file=True,
        ),
        TextField(
            "contact_email",
            "Whom the provider writes to about the recipient's data.",
            "data@acme.example",
            max_chars=254,
            pattern=r"[^@\s]+@[^@\s]+\.[^@\s]+",
            in_portal=True,
        ),
    ),
}


def add_text_fields(owner: TextOwner) -> Callable[[type[Model]], type[Model]]:
    """A class decorator: adds those texts of an object that the model does not have yet, each None by default."""

    def decorate(model: type[Model]) -> type[Model]:
        missing = [text for text in TEXT_FIELDS[owner] if text.name not in model.model_fields]
        fields = {text.name: (str | None, Field(None, description=text.description)) for text in missing}
        derived: type[Model] = create_model(  # type: ignore[call-overload]  # its overloads take no mapping of fields
            model.__name__, __base__=model, __doc__=model.__doc__, __module__=model.__module__, **fields
        )
        return derived

    return decorate
