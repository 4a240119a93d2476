"""Named disks: objects with append, kept in plain directories that sandboxes can mount, or in any S3 bucket."""

from forkyard.disk.catalogue import Disks
from forkyard.disk.copying import copy
from forkyard.disk.errors import STATUS, ConflictError, DiskError
from forkyard.disk.keys import check_key
from forkyard.disk.named import Objects, named_disk
from forkyard.disk.protocol import Body, Disk, Reading
from forkyard.disk.values import (
    APPEND_LIMIT,
    DEFAULT_TYPE,
    LIST_LIMIT,
    PART_FLOOR,
    PUT_LIMIT,
    About,
    Branch,
    Bucket,
    Condition,
    DiskInfo,
    KeyPair,
    Listing,
    ObjectInfo,
    Part,
    Range,
    RootAttributes,
    Upload,
    User,
)

__all__ = [
    "APPEND_LIMIT",
    "DEFAULT_TYPE",
    "LIST_LIMIT",
    "PART_FLOOR",
    "PUT_LIMIT",
    "STATUS",
    "About",
    "Body",
    "Branch",
    "Bucket",
    "Condition",
    "ConflictError",
    "Disk",
    "DiskError",
    "DiskInfo",
    "Disks",
    "KeyPair",
    "Listing",
    "ObjectInfo",
    "Objects",
    "Part",
    "Range",
    "Reading",
    "RootAttributes",
    "Upload",
    "User",
    "check_key",
    "copy",
    "named_disk",
]
