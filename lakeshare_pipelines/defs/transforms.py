"""Functions that projects give as transforms in code, instead of as text in the contract.

They are found again by module and name, as those of contracts are; each process of a run imports them.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar, overload

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import TransformError
from lakeshare_pipelines.wap.inputs import Inputs, load_transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TransformFunction: TypeAlias = "Callable[[Inputs], DataFrame]"
Transforms: TypeAlias = Mapping[str, TransformFunction] | Sequence[TransformFunction]
"""Functions by the names of their tables, or functions with the decorator `transform`."""
AnyTransform = TypeVar("AnyTransform", bound=TransformFunction)
TABLE = "__lakeshare_table__"
"""Attribute of a function with the decorator: the name of its table."""
SIGNATURE = "(inputs: Inputs) -> DataFrame"


@overload
def transform(function: AnyTransform) -> AnyTransform: ...


@overload
def transform(*, table: str) -> Callable[[AnyTransform], AnyTransform]: ...


def transform(
    function: AnyTransform | None = None, *, table: str | None = None
) -> AnyTransform | Callable[[AnyTransform], AnyTransform]:
    """Marks the function that makes a table, the one of its name by default; `published_set` takes it in `transforms`.

    Example: `@lakeshare.transform(table="enriched")` on `def enrich(inputs: Inputs) -> DataFrame`.
    """

    def mark(marked: AnyTransform) -> AnyTransform:
        setattr(marked, TABLE, table or getattr(marked, "__name__", ""))
        return marked

    return mark if function is None else mark(function)


def name_transforms(path: Path, transforms: Transforms) -> dict[str, str]:
    """Returns functions as `package.module:function`, by the names of their tables; `path` is the contract's.

    Raises:
        TransformError: a function has no decorator or no module, or cannot be called with one argument.
    """
    if isinstance(transforms, Mapping):
        return {table: _name_function(path, table, function) for table, function in transforms.items()}
    named: dict[str, str] = {}
    for function in transforms:
        table = getattr(function, TABLE, None)
        if table is None:
            fix = "Put @lakeshare_pipelines.transform on it, or give transforms={'table': function}."
            raise TransformError(path, "transforms", _describe(function), "names no table", fix)
        if table in named:
            fix = "Keep one of them, or name the table: @lakeshare_pipelines.transform(table=…)."
            reason = f"is a second one for the table, after {named[table]}"
            raise TransformError(path, table, _describe(function), reason, fix)
        named[table] = _name_function(path, table, function)
    return named


def require_callable(contract: SetContract, names: Mapping[str, str]) -> None:
    """Raises `TransformError` if a function given in code cannot be called, or is not found again by its name."""
    for table in map(contract.table, names):
        load_transform(contract, table)


def _name_function(path: Path, table: str, function: object) -> str:
    described = _describe(function)
    if not inspect.isfunction(function):
        reason, fix = "is no function", f"Give a function {SIGNATURE}."
        raise TransformError(path, table, described, reason, fix)
    where = f" ({function.__code__.co_filename}, line {function.__code__.co_firstlineno})"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        fix = f"Return the rows from a plain function {SIGNATURE}."
        raise TransformError(path, table, described, f"is a coroutine or a generator{where}", fix)
    module = sys.modules.get(function.__module__)
    is_found = getattr(module, function.__qualname__, None) is function
    if function.__module__ == "__main__" or not is_found:
        fix = "Define it with `def` at the top of a module that can be imported: each process of a run imports it."
        raise TransformError(path, table, described, f"cannot be imported by its name{where}", fix)
    return described


def _describe(function: object) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return f"{module}:{name}" if module and name else repr(function)
