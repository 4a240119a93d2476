"""Which limits the local provider keeps here, and those that each process carries itself."""

from __future__ import annotations

from typing import Any

from forkyard.sandbox.local.cgroups import Controllers, pid_max
from forkyard.sandbox.values import Feature, Limits
from forkyard.values import MIB


def limit_features(controllers: Controllers) -> set[Feature]:
    """What can be promised with these controllers; disks, files and output need none."""
    promised = {
        Feature.LIMIT_CPU: controllers.cpu,
        Feature.LIMIT_MEMORY: controllers.memory,
        Feature.LIMIT_PIDS: controllers.pids or pid_max(Limits()),
        Feature.LIMIT_DISK: True,
        Feature.LIMIT_FILES: True,
        Feature.LIMIT_OUTPUT: True,
    }
    return {feature for feature, there in promised.items() if there}


def boot_limits(limits: Limits, controllers: Controllers) -> dict[str, Any]:
    """What PID 1 is told: limits its commands inherit, whether memory can be full, settings of its namespaces."""
    rlimits = {
        "RLIMIT_NOFILE": limits.open_files,
        "RLIMIT_FSIZE": limits.file_mb and limits.file_mb * MIB,
    }
    return {
        "rlimits": {name: value for name, value in rlimits.items() if value is not None},
        "full_memory": limits.memory_mb is not None,
        "sysctls": {} if controllers.pids else pid_max(limits),
    }
