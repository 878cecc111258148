"""Parts of the benchmarks of the pipelines: days to deliver, Spark's own counts, and stores that count requests."""
