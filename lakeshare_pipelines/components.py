"""Components of Dagster: sets and what a lake has once, in a few lines of `defs.yaml`.

`dg list components` finds them by the entry point `dagster_dg_cli.registry_modules`. Beside `defs/` and
`definitions.py` this is the only module that imports Dagster.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, Self

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lakeshare_pipelines.defs.published_set import catalog_definitions, set_definitions
from lakeshare_pipelines.defs.wap import table_key

CONTRACT_FILE = "contract.yaml"
STARTER = Template("""\
# A set: tables that are published together. `lakeshare contract check FILE` checks this file.
apiVersion: v3.1.0
kind: DataContract
id: $name
name: $name
version: 1.0.0
status: draft
servers:
  - {server: lake, type: local, path: warehouse, format: $format}
schema:
  - name: $name
    physicalName: $name.$name
    description: One row per item.
    customProperties:
      # Delivered as landing/$name/all/$name.csv
      - {property: source, value: $name}
    properties:
      - {name: id, logicalType: integer, physicalType: bigint, primaryKey: true}
      - {name: description, logicalType: string}
customProperties:
  - {property: partitioning, value: none}
""")


class StarterContract(BaseModel):
    """What the starter contract is made from."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(
        None, pattern=r"^[a-z][a-z0-9_]*$", description="Name of the set; the component's folder by default."
    )
    table_format: str = Field("iceberg", pattern="^(iceberg|delta)$", description="iceberg or delta.")


class PublishedSetScaffolder(dg.Scaffolder[StarterContract]):
    """Writes `defs.yaml`, and a starter contract beside it if there is none."""

    @classmethod
    def get_scaffold_params(cls) -> type[StarterContract]:
        return StarterContract

    def scaffold(self, request: dg.ScaffoldRequest[StarterContract]) -> None:
        folder = request.target_path
        path = folder / CONTRACT_FILE
        if not path.exists():
            name = request.params.name or folder.name.lower().replace("-", "_")
            text = STARTER.substitute(name=name, format=request.params.table_format)
            path.write_text(text, encoding="utf-8")
        dg.scaffold_component(request, {"contract": CONTRACT_FILE})


class Freshness(dg.Model, dg.Resolvable):
    """How old the newest publication may be."""

    fail_hours: Annotated[float, Field(gt=0, description="Hours after which it fails.")]
    warn_hours: Annotated[float | None, Field(gt=0, description="Hours after which it warns.")] = None

    def as_policy(self) -> dg.FreshnessPolicy:
        warn = None if self.warn_hours is None else timedelta(hours=self.warn_hours)
        return dg.FreshnessPolicy.time_window(timedelta(hours=self.fail_hours), warn)


class Retries(dg.Model, dg.Resolvable):
    """How often a step that failed is tried again."""

    max_retries: Annotated[int, Field(ge=0)]
    delay_s: Annotated[float, Field(ge=0, description="Seconds before each.")] = 0.0

    def as_policy(self) -> dg.RetryPolicy:
        return dg.RetryPolicy(max_retries=self.max_retries, delay=self.delay_s)


class PartitionMapping(dg.Model, dg.Resolvable):
    """Which partitions of an input belong to a partition of the set."""

    type: Annotated[
        Literal["all", "last", "identity", "time_window"],
        Field(description="A class of Dagster: AllPartitionMapping and so on."),
    ]
    start_offset: Annotated[int, Field(description="Of time_window: -1 is the partition before.")] = 0
    end_offset: Annotated[int, Field(description="Of time_window.")] = 0

    @model_validator(mode="after")
    def _require_time_window(self) -> Self:
        if self.type != "time_window" and (self.start_offset or self.end_offset):
            raise ValueError(f"start_offset and end_offset are of type time_window, not of {self.type}")
        return self

    def as_mapping(self) -> dg.PartitionMapping:
        if self.type == "time_window":
            return dg.TimeWindowPartitionMapping(start_offset=self.start_offset, end_offset=self.end_offset)
        return _MAPPINGS[self.type]()


_MAPPINGS: Mapping[str, Callable[[], dg.PartitionMapping]] = {
    "all": dg.AllPartitionMapping,
    "last": dg.LastPartitionMapping,
    "identity": dg.IdentityPartitionMapping,
}


@dg.scaffold_with(PublishedSetScaffolder)
class PublishedSet(dg.Component, dg.Model, dg.Resolvable):
    """Tables of one contract: delivered, audited by blocking checks, and published together with a number."""

    # Dagster's templates make a number of a text like "1", for example as the value of a tag.
    model_config = ConfigDict(arbitrary_types_allowed=True, coerce_numbers_to_str=True)

    contract: Annotated[
        str, Field(description="The contract file, relative to defs.yaml.", examples=[CONTRACT_FILE])
    ]
    upstream_contracts: Annotated[
        Sequence[str] | None,
        Field(
            description="Contract files of the sets that it reads, relative to defs.yaml; those beside the contract by "
            "default."
        ),
    ] = None
    deps: Annotated[
        Sequence[dg.ResolvedAssetKey],
        Field(description="Further assets to run after, such as one that writes the delivery."),
    ] = ()
    partition_mappings: Annotated[
        dict[str, PartitionMapping] | None,
        Field(
            description="By tables of `inputs`: which partitions of the table a partition of the set reads.",
            examples=[{"reference.airports": {"type": "last"}}],
        ),
    ] = None
    group_name: Annotated[str | None, Field(description="The name of the set by default.")] = None
    owners: Annotated[Sequence[str] | None, Field(description="Those of the contract by default.")] = None
    tags: Annotated[dict[str, str] | None, Field(description="In addition to those of the contract.")] = None
    automation_condition: Annotated[
        dg.AutomationCondition[Any] | None,
        dg.Resolver.default(
            model_field_type=str | None,
            description="When Dagster starts a run, beside the sensors.",
            examples=["{{ dg.AutomationCondition.eager() }}"],
        ),
    ] = None
    freshness: Annotated[Freshness | None, Field(description="How old the newest publication may be.")] = None
    retries: Annotated[Retries | None, Field(description="How often each step is tried again.")] = None
    pool: Annotated[
        str | None, Field(description="Dagster's pool that limits runs, lakeshare_<set> by default.")
    ] = None
    has_sensors: Annotated[
        bool, Field(description="Whether sensors and the schedule of sources start runs.")
    ] = True
    has_maintenance: Annotated[
        bool, Field(description="Whether the tables have maintenance assets and a schedule.")
    ] = True

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        upstream = self.upstream_contracts
        mapped = [
            dg.AssetDep(table_key(name), partition_mapping=mapping.as_mapping())
            for name, mapping in (self.partition_mappings or {}).items()
        ]
        return set_definitions(
            _locate(context, self.contract),
            upstream_contracts=None if upstream is None else [_locate(context, each) for each in upstream],
            deps=[*self.deps, *mapped],
            group_name=self.group_name,
            owners=self.owners,
            tags=self.tags,
            automation_condition=self.automation_condition,
            freshness_policy=None if self.freshness is None else self.freshness.as_policy(),
            retry_policy=None if self.retries is None else self.retries.as_policy(),
            pool=self.pool,
            has_sensors=self.has_sensors,
            has_maintenance=self.has_maintenance,
        )


class ShareCatalog(dg.Component, dg.Model, dg.Resolvable):
    """What a lake has once: the shares that its contracts declare, and the nightly janitor."""

    contracts: Annotated[
        Sequence[str],
        Field(
            description="The contract files of all sets, relative to defs.yaml; patterns are allowed.",
            examples=[["../*/contract.yaml"]],
        ),
    ]

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        found = [path for pattern in self.contracts for path in _find_files(context, pattern)]
        return catalog_definitions(found)


def _locate(context: dg.ComponentLoadContext, name: str) -> Path:
    return (context.path / name).resolve()


def _find_files(context: dg.ComponentLoadContext, pattern: str) -> list[Path]:
    """The files of a pattern, by name; a name without a file is kept, so that loading it reports it."""
    folder, parts = context.path, list(Path(pattern).parts)
    while parts and parts[0] == "..":
        folder, parts = folder.parent, parts[1:]
    below = str(Path(*parts))
    return sorted(folder.glob(below)) or [folder / below]
