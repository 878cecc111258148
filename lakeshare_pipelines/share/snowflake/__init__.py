"""Snowflake follows along: an external Iceberg table there shows the newest publication here. See docs/adr/0018."""
