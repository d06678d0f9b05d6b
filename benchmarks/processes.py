"""CPU, memory and disk of processes, from the operating system."""

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_BLOCK: Final = 512
"""Bytes in which a file's blocks are counted."""


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_of(pid: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak_memory_of(pid: int) -> float:
    """Megabytes that a process held at most."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024 / 1e6


def disk_of(*paths: Path) -> float:
    """Megabytes that files, and all within folders, take."""
    files = (file for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return sum(file.stat().st_blocks * _BLOCK for file in files if file.is_file()) / 1e6
