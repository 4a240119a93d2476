"""The vendor's hosts that its clients go to, and whose names this server answers to behind the proxy."""

from __future__ import annotations

from collections.abc import Mapping

REGIONS: Mapping[str, str] = {
    "aws-us-east-1": "green.us-east-1.aws.prod.archil.com",
    "aws-us-west-2": "green.us-west-2.aws.prod.archil.com",
    "aws-eu-west-1": "green.eu-west-1.aws.prod.archil.com",
    "gcp-us-central1": "blue.us-central1.gcp.prod.archil.com",
}
REGION = "aws-us-east-1"
"""The region this server says it is."""

CONTROL, S3 = "control", "s3"
VENDOR_HOSTS: tuple[str, ...] = tuple(f"{face}.{place}" for place in REGIONS.values() for face in (CONTROL, S3))
_VENDOR_HOSTS = frozenset(VENDOR_HOSTS)


def is_vendor_host(host: str) -> bool:
    """Whether a name is one of the vendor's."""
    return host.lower().rstrip(".") in _VENDOR_HOSTS
