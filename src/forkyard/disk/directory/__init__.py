"""Disks that are plain directories."""

from forkyard.disk.directory.disk import DirectoryDisk
from forkyard.disk.directory.tree import remove_tree

__all__ = ["DirectoryDisk", "remove_tree"]
