"""Disks that are kept in an S3 bucket."""

from forkyard.disk.bucket.disk import BucketDisk

__all__ = ["BucketDisk"]
