"""The tables of the contracts that are made by Python."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lakeshare_pipelines.wap.inputs import Inputs


def add_aircraft(inputs: Inputs) -> DataFrame:
    """Returns the departures of the run's days, each with its aircraft as it was at that time."""
    departures, aircraft = inputs.table("bronze.departures"), inputs.table("bronze.aircraft")
    was_current = (aircraft.valid_from <= departures.scheduled_at) & (
        aircraft.valid_to.isNull() | (departures.scheduled_at < aircraft.valid_to)
    )
    joined = departures.join(
        aircraft, (departures.registration == aircraft.registration) & was_current, "left"
    )
    return joined.select(
        F.to_date("scheduled_at").alias("flight_date"),
        "flight",
        "scheduled_at",
        departures.registration,
        "carrier",
        "seats",
        F.concat_ws("-", "origin", "dest").alias("route"),
        "delay",
    )


def find_worst_flights(inputs: Inputs) -> DataFrame:
    """Returns the latest departure of each route and day; the first flight number of equal ones."""
    flights = inputs.table("silver.flights").where("delay IS NOT NULL")
    latest_first = Window.partitionBy("flight_date", "route").orderBy(F.desc("delay"), "flight")
    ranked = flights.withColumn("position", F.row_number().over(latest_first))
    return ranked.where("position = 1").select("flight_date", "route", "flight", "carrier", "delay", "seats")
