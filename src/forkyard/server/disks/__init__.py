"""Disks over HTTP: made and described, mounted into sandboxes, commands run over them, files of them shared.

Their objects are read and written by the S3 face. `Leases` knows which sandbox writes to which disk.
"""

from forkyard.server.disks.execs import Execs
from forkyard.server.disks.leases import Leases

__all__ = ["Execs", "Leases"]
