"""The Dagster package: deliveries become audited, numbered publications."""
