"""How much memory this machine uses for processes and for what the kernel keeps of them."""

from __future__ import annotations

from pathlib import Path

_FIELDS = ("AnonPages", "Shmem", "Slab", "KernelStack", "PageTables", "Percpu")


def in_use() -> int:
    """Bytes of memory in use on this machine, without what only caches files and could be given away."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    return sum(sizes.get(name, 0) for name in _FIELDS) * 1024
