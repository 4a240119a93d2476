"""The network face: sandboxes, disks and processes over HTTP, for the clients people already have."""
