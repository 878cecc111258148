"""All cases, in the order they are tried and reported."""

from collections.abc import Sequence
from fnmatch import fnmatch
from types import ModuleType

from lakeshare_server.conformance.case import Case
from lakeshare_server.conformance.cases import (
    async_queries,
    authentication,
    bad_requests,
    change_bounds,
    changes,
    credentials,
    data_files,
    deletion_vectors,
    delta_format,
    end_stream,
    file_ids,
    fragments,
    limits,
    listing_pages,
    listings,
    metadata,
    negotiation,
    other_profiles,
    paging,
    predicates,
    refresh,
    snapshots,
    time_travel,
    versions,
    windows,
)
from lakeshare_server.errors import BadRequest

MODULES: tuple[ModuleType, ...] = (
    authentication,
    other_profiles,
    listings,
    listing_pages,
    versions,
    metadata,
    negotiation,
    snapshots,
    delta_format,
    deletion_vectors,
    data_files,
    time_travel,
    windows,
    changes,
    change_bounds,
    paging,
    refresh,
    end_stream,
    file_ids,
    async_queries,
    predicates,
    limits,
    credentials,
    bad_requests,
    fragments,
)


def every_case() -> tuple[Case, ...]:
    """The whole suite."""
    return tuple(case for module in MODULES for case in _of(module))


def chosen_cases(patterns: Sequence[str]) -> tuple[Case, ...]:
    """The cases whose name or group fits one of the patterns (`paging.*`, `*head*`); all for no pattern.

    Raises:
        BadRequest: none does.
    """
    if not patterns:
        return every_case()
    found = tuple(case for case in every_case() if any(_fits(case, pattern) for pattern in patterns))
    if not found:
        raise BadRequest("--only", ", ".join(patterns), "No case has such a name; --list names them all.")
    return found


def group_titles() -> dict[str, str]:
    """What each group is about."""
    return {case.group: _title(module) for module in MODULES for case in _of(module)}


def _of(module: ModuleType) -> list[Case]:
    found = [value for value in vars(module).values() if isinstance(value, Case)]
    return [*found, *getattr(module, "CASES", ())]


def _title(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _fits(case: Case, pattern: str) -> bool:
    return fnmatch(case.name, pattern) or case.group == pattern
