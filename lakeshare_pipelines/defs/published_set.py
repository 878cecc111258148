"""The API for projects of Dagster: one contract as an assets definition, or as definitions with all that belongs to it.

`lakeshare_pipelines` exports these functions; `lakeshare_pipelines.components` makes them a component.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, Unpack

import dagster as dg

from lakeshare_pipelines.contracts import SetContract, load_connected, load_contract
from lakeshare_pipelines.contracts.loader import list_contract_files
from lakeshare_pipelines.defs import wap
from lakeshare_pipelines.defs.maintenance import janitor_definitions, maintenance_definitions
from lakeshare_pipelines.defs.share import share_catalog
from lakeshare_pipelines.defs.table_inputs import TABLES, table_manager
from lakeshare_pipelines.defs.transforms import Transforms, name_transforms, require_callable
from lakeshare_pipelines.errors import ContractError

AnyContract: TypeAlias = SetContract | Path | str
Dependency: TypeAlias = dg.AssetDep | dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | Sequence[str] | str
RESOURCE = "lakeshare"
"""Key of the `LakeResource` that the assets need."""
RECORDS = "lakeshare_records"
"""Key of the IO manager of the steps: the default one of a project may take frames only."""
COMPONENT_FILES = ("defs.yaml", "defs.yml")


class SetOptions(TypedDict, total=False):
    """What a project may set for the assets of a set; the parameters of `published_set`."""

    transforms: Transforms
    upstream_contracts: Sequence[Path | str] | None
    deps: Iterable[Dependency]
    group_name: str | None
    owners: Sequence[str] | None
    tags: Mapping[str, str] | None
    automation_condition: dg.AutomationCondition[Any] | None
    freshness_policy: dg.FreshnessPolicy | None
    retry_policy: dg.RetryPolicy | None
    pool: str | None


def published_set(
    contract: AnyContract,
    *,
    transforms: Transforms = (),
    upstream_contracts: Sequence[Path | str] | None = None,
    deps: Iterable[Dependency] = (),
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
    freshness_policy: dg.FreshnessPolicy | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    pool: str | None = None,
) -> dg.AssetsDefinition:
    """Returns the tables of a contract as one assets definition: write, audit with blocking checks, publish.

    It needs `resources=lakeshare_resources()`. `set_definitions` also has the landing asset,
    the job, the sensors and the maintenance.

    Args:
        contract: A loaded contract, or its file.
        transforms: Functions of tables that have no origin in the contract: by names of tables, or with the decorator
            `transform`.
        upstream_contracts: Files of the contracts whose tables it reads (`inputs`); those beside it by default.
        deps: Further assets to run after. For a table of `inputs`, an `AssetDep` with a partition mapping replaces the
            default one: days to the same days, all else to all partitions.
        group_name: The name of the set by default.
        owners: Those of the contract by default.
        tags: In addition to those of the contract.
        automation_condition: When Dagster starts a run, beside the sensors of `set_definitions`.
        freshness_policy: How old the newest publication may be.
        retry_policy: Of each of the three steps; a failed audit and a refused publication are not retried.
        pool: Dagster's pool that limits runs of the set, `lakeshare_<set>` by default.

    Raises:
        ContractError: the contract is not valid, reads a table that no upstream contract has, or a table of
            `transforms` is not in it or has an origin.
        TransformError: a function in `transforms` cannot be called with one argument, or not be imported by its name.
    """
    loaded = load_set(contract, upstream_contracts, transforms)
    further = {dep.asset_key: dep for dep in map(_make_dep, deps)}
    asset = wap.wap_set(
        loaded,
        pool=pool,
        retry_policy=retry_policy,
        upstream=_list_inputs(loaded, further),
        io_manager_key=RECORDS,
    )
    given = {
        "group_name": group_name,
        "owners": None if owners is None else list(owners),
        "automation_condition": automation_condition,
        "freshness_policy": freshness_policy,
    }
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}

    def change(spec: dg.AssetSpec) -> dg.AssetSpec:
        # A graph of assets drops the partition mappings of its inputs.
        mapped = [further.get(dep.asset_key, dep) for dep in spec.deps]
        return spec.replace_attributes(deps=mapped, **changed).merge_attributes(tags=tags or {})

    return asset.map_asset_specs(change)


def set_definitions(
    contract: AnyContract,
    *,
    has_sensors: bool = True,
    has_maintenance: bool = True,
    **options: Unpack[SetOptions],
) -> dg.Definitions:
    """Returns `published_set(contract, …)` with landing asset, job, sensors, maintenance and the resources.

    Definitions of several sets can be merged: they share the resource. Runs of the job and of the sensors execute in
    one process; for other runs set `executor=dg.in_process_executor`, or each step starts a Spark of its own.

    Raises:
        ContractError: as `published_set`.
        TransformError: as `published_set`.
    """
    transforms = options.pop("transforms", ())
    loaded = load_set(contract, options.get("upstream_contracts"), transforms)
    asset, job = published_set(loaded, **options), wap.publish_job(loaded)
    sensors = []
    if has_sensors and loaded.takes_deliveries:
        sensors.append(wap.landing_sensor(loaded, job=job))
    if has_sensors and loaded.inputs:
        sensors.append(wap.inputs_sensor(loaded, job=job))
    own = dg.Definitions(
        assets=[asset, *([wap.landing_asset(loaded)] if loaded.takes_deliveries else [])],
        jobs=[job],
        sensors=sensors,
        schedules=[wap.source_schedule(loaded)] if has_sensors and loaded.schedule else [],
        resources=lakeshare_resources(),
    )
    return dg.Definitions.merge(own, maintenance_definitions(loaded)) if has_maintenance else own


def catalog_definitions(contracts: Sequence[AnyContract]) -> dg.Definitions:
    """Returns what a lake has once: the asset `share_catalog`, which applies the shares of contracts, and the janitor.

    Give the contracts of all sets of the lake: declared shares that these contracts lack are removed.
    """
    named = [contract for contract in contracts if isinstance(contract, SetContract)]
    files = [Path(contract) for contract in contracts if not isinstance(contract, SetContract)]
    loaded = [*named, *(load_connected(file, files, None) for file in files)]
    return dg.Definitions.merge(
        dg.Definitions(assets=[share_catalog(loaded)], resources=lakeshare_resources()),
        janitor_definitions(loaded),
    )


@cache
def lakeshare_resources() -> dict[str, Any]:
    """Returns the resources of sets, always the same objects: definitions with others for a key cannot be merged."""
    return {
        RESOURCE: wap.LakeResource(spark=wap.SparkResource()),
        RECORDS: dg.FilesystemIOManager(),
        TABLES: table_manager,
    }


def load_set(
    contract: AnyContract, upstream: Sequence[Path | str] | None = None, transforms: Transforms = ()
) -> SetContract:
    """Loads a contract that is not loaded yet, and the contracts that it reads.

    Raises:
        ContractError: as `published_set`.
        TransformError: as `published_set`.
    """
    if isinstance(contract, SetContract):
        if transforms:
            hint = "Give the contract's file instead of the loaded contract."
            raise ContractError(contract.path, "transforms", "the contract is loaded already", hint)
        return contract
    path = Path(contract)
    names = name_transforms(path, transforms)
    files: list[Path] = []
    if load_contract(path, names).inputs:
        beside = list_contract_files(path.parent) if upstream is None else []
        files = [other for other in beside if other.name not in COMPONENT_FILES]
        files += map(Path, upstream or ())
    loaded = load_connected(path, files, names)
    require_callable(loaded, names)
    return loaded


def _make_dep(dependency: Dependency) -> dg.AssetDep:
    return dependency if isinstance(dependency, dg.AssetDep) else dg.AssetDep(dependency)


def _list_inputs(contract: SetContract, deps: Iterable[dg.AssetKey]) -> dict[str, dg.AssetIn]:
    """Returns dependencies by the names of op inputs; one on an asset that the set depends on anyway has its name."""
    known = {read.key: name for name, read in wap.list_upstream(contract).items()}
    return {
        known.get(key) or re.sub(r"\W", "_", "__".join(["after", *key.path])): dg.AssetIn(
            key, dagster_type=dg.Nothing
        )
        for key in deps
    }
