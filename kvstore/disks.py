"""Whether a path can be what a user asks of it as an NVMe tier: looked at once, at start, and said plainly."""

import os
from dataclasses import dataclass
from pathlib import Path

MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "9p", "afs", "beegfs"})


@dataclass(frozen=True, slots=True)
class Findings:
    """error: why the path cannot be used at all, "" if it can. warnings: what the user should know."""

    error: str
    warnings: tuple[str, ...]


def examine(path: Path, capacity_bytes: int, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> Findings:
    """Look at the file system on which `path` lies, or would lie once it is made."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if there == path and not path.is_dir():
        return Findings(f"{path} is not a directory", ())
    if not os.access(there, os.W_OK | os.X_OK):
        return Findings(f"{there} cannot be written by this user", ())
    stat = os.statvfs(there)
    whole, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    if capacity_bytes > whole:
        return Findings(f"{_gib(capacity_bytes)} is more than the {_gib(whole)} that the disk under {path} has", ())
    warnings: list[str] = []
    kind = filesystem_of(there, mountinfo)
    if kind in MEMORY:
        warnings.append(
            f"{path} is {kind}, which is memory: it is lost at the next boot and takes what --dram could have; "
            "choose a directory on a disk"
        )
    elif kind in NETWORK or kind.startswith("fuse."):
        warnings.append(
            f"{path} is {kind}, on another machine: latencies are the network's, and a lock there may not keep a "
            "second store out; choose a local disk"
        )
    ours = sum(entry.stat().st_size for entry in path.iterdir() if entry.is_file()) if path.is_dir() else 0
    if capacity_bytes > free + ours:
        warnings.append(
            f"{path} may take {_gib(capacity_bytes)}, but its disk has {_gib(free + ours)} for it at present: the tier "
            "will stop at what is free"
        )
    return Findings("", tuple(warnings))


def filesystem_of(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds `path`, such as "ext4"; "" if the system does not say."""
    where, found, best = path.resolve(), "", -1
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mounted = Path(left.split(" ")[4].encode().decode("unicode_escape"))
        if where.is_relative_to(mounted) and len(mounted.parts) >= best:  # of two mounts on one point, the later
            found, best = right.split(" ")[0], len(mounted.parts)
    return found


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
