"""Types of columns that pyiceberg does not know, among them variants: kept by their names, so that metadata parses.

Whether recipients can be told of one is decided where the columns are put into words, in `schema.py`.
"""

from typing import Any

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_serializer, model_validator
from pyiceberg.exceptions import ValidationError as MalformedType
from pyiceberg.types import IcebergType, PrimitiveType


class ForeignType(PrimitiveType):
    """A type of a column that is known by its name only."""

    root: str = Field()

    def __init__(self, name: str) -> None:
        super().__init__(root=name)

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Take any name; pyiceberg's own types refuse those that it does not know."""
        return handler(v)

    @model_serializer
    def ser_model(self) -> str:
        """The name, as metadata has it."""
        return self.root

    def __getnewargs__(self) -> tuple[str]:
        return (self.root,)


def with_foreign_types(kind: Any) -> Any:
    """A type of a schema in Iceberg's JSON form, in which each name that pyiceberg cannot parse is a `ForeignType`."""
    if isinstance(kind, str):
        return kind if _is_known(kind) else ForeignType(kind)
    if not isinstance(kind, dict):
        return kind
    if isinstance(kind.get("fields"), list):
        return {**kind, "fields": [_with_type(field, "type") for field in kind["fields"]]}
    for part in ("element", "key", "value"):
        kind = _with_type(kind, part)
    return kind


def _with_type(field: Any, part: str) -> Any:
    return (
        {**field, part: with_foreign_types(field[part])}
        if isinstance(field, dict) and part in field
        else field
    )


def _is_known(name: str) -> bool:
    try:
        IcebergType.model_validate(name)
    except (ValidationError, ValueError, MalformedType):
        return False
    return True
