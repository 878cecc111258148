"""A stand-in for S3 Batch Operations: the job calls of s3control, run against any S3 endpoint."""
