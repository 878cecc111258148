"""Processes for tests that are killed or work beside this one, forked from a process that has the imports done."""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["tests.builders.killed_run", "great_expectations", "lakeshare_pipelines.backup.copy.spark"]
)
