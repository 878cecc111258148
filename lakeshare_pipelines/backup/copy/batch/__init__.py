"""S3 Batch Operations: manifests, requests, jobs and what their reports say; the engine is `copy/aws_batch.py`."""
