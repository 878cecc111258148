"""Traces and logs of the server, the commands and runs; metrics are in `lakeshare_server/metrics.py`."""
