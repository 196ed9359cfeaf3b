"""What the figures were measured on: processor, cores, memory, versions. No names of hosts or folders."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("streamrf", "numpy", "scipy", "numba", "zarr", "pyarrow", "mkl")
FEATURES = ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")


def describe() -> dict[str, Any]:
    cpu = _cpu()
    return {
        "cpu": cpu["model name"], "instructions": [name for name in FEATURES if name in cpu["flags"].split()],
        "cores": cores(), "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES if version(name)},
    }  # fmt: skip


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> dict[str, str]:
    found = {"model name": platform.processor() or platform.machine(), "flags": ""}
    place = Path("/proc/cpuinfo")
    for line in reversed(place.read_text().splitlines()) if place.exists() else ():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    return found
