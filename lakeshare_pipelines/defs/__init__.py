"""The Dagster layer: what the UI shows and starts. Thin: every decision is made in the packages it calls.

No file here may postpone annotations (`from __future__ import annotations`): Dagster reads them at run time.
"""
