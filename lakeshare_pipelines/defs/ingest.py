"""Landing: deliveries as external assets, and the sensor that reports them and starts their runs."""

from collections.abc import Sequence

import dagster as dg

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.defs.partitions import deliveries_of, delivery_key, partitions_of
from lakeshare_pipelines.defs.wap import landing_key, table_key
from lakeshare_pipelines.errors import DeliveriesRefused
from lakeshare_pipelines.ingest import Delivery, find_deliveries
from lakeshare_pipelines.ingest.s3_landing import fetch_deliveries
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.share.publication import deliveries_in_force
from lakeshare_server.catalog import Ledger, open_catalog

INTERVAL_S = 30


def landing_asset(contract: SetContract) -> dg.AssetSpec:
    """What others deliver: lakeshare only observes it."""
    return dg.AssetSpec(
        landing_key(contract),
        description=f"Deliveries for set {contract.name}; one key per content that arrived.",
        group_name="landing",
        kinds={"file"},
        owners=list(contract.owners),
        partitions_def=deliveries_of(contract),
    )


def landing_sensor(contract: SetContract, *, from_s3: bool = False) -> dg.SensorDefinition:
    """Reports complete deliveries in stable order and requests a run for each content not in force yet.

    With `from_s3` it first fetches what has landed in S3, by the resource `s3`.
    """
    tables = [table_key(table.name) for table in contract.tables]

    @dg.sensor(
        name=f"landing_{contract.name}",
        description=f"Watches the landing folder of {contract.name}.",
        asset_selection=tables,
        minimum_interval_seconds=INTERVAL_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        required_resource_keys={"s3"} if from_s3 else None,
    )
    def landing(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        settings = LakeSettings()
        refused = _fetch(context, settings, contract) if from_s3 else ""
        known = set(context.instance.get_dynamic_partitions(deliveries_of(contract).name or ""))
        complete = [found for found in find_deliveries(settings, contract) if found.complete]
        fresh = [found for found in complete if delivery_key(found.partition, found.digest) not in known]
        if not fresh:
            return dg.SkipReason(f"{len(complete)} complete deliveries, none of them new. {refused}".rstrip())
        shown = deliveries_in_force(Ledger(open_catalog(settings.catalog_url)), contract)
        wanted = [found for found in fresh if shown.get(found.partition, ("",))[0] != found.digest]
        return dg.SensorResult(
            asset_events=[_seen(contract, found) for found in fresh],
            dynamic_partitions_requests=[
                deliveries_of(contract).build_add_request(
                    [delivery_key(found.partition, found.digest) for found in fresh]
                )
            ],
            run_requests=_requests(context, contract, wanted),
        )

    return landing


def _fetch(context: dg.SensorEvaluationContext, settings: LakeSettings, contract: SetContract) -> str:
    """Fetch what has landed; returns why some of it is refused, which must not keep the rest from its runs."""
    try:
        # Dagster hands out an S3Resource as its client.
        fetched = fetch_deliveries(context.resources.s3, settings, contract)
    except DeliveriesRefused as refused:
        context.log.warning(str(refused))
        return str(refused)
    if fetched:
        context.log.info(f"fetched from {settings.landing_s3}: {', '.join(fetched)}")
    return ""


def _requests(
    context: dg.SensorEvaluationContext, contract: SetContract, wanted: Sequence[Delivery]
) -> list[dg.RunRequest]:
    days = partitions_of(contract)
    requests = []
    for found in wanted:
        if days is not None and not days.has_partition_key(found.partition):
            context.log.error(
                f"delivery {contract.name}/{found.partition} is no day from {contract.first_partition} to "
                "yesterday; rename its folder, or move the contract's first partition."
            )
            continue
        requests.append(
            dg.RunRequest(
                run_key=f"{contract.name}:{found.partition}:{found.digest}",
                partition_key=None if days is None else found.partition,
                tags={"lakeshare/delivery": delivery_key(found.partition, found.digest)},
            )
        )
    return requests


def _seen(contract: SetContract, found: Delivery) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        landing_key(contract),
        partition=delivery_key(found.partition, found.digest),
        metadata={
            "lakeshare/digest": found.digest,
            "lakeshare/files": len(found.files),
            "dagster/uri": dg.MetadataValue.path(str(found.path)),
            "lakeshare/arrived": dg.MetadataValue.timestamp(found.arrived_at),
        },
    )
