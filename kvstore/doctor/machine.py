"""What the machine, or the container, gives: versions, memory, limits. Reads /proc and /sys below `root`."""

import importlib.util
import os
import platform
import resource
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..arena import arena_name
from ..memory import memory_limit_bytes
from ..status_view import format_bytes
from .finding import Finding, Level, fail, ok, warn

MIN_PYTHON = (3, 11)
MIN_FILES = 4096  # sessions, segments, peers, each a few
PACKAGES = ("grpcio", "protobuf", "numpy", "fastapi", "redis")
EXTRAS = {
    "engine": "torch",
    "dashboard": "nicegui",
    "load": "aiohttp",
    "otel": "opentelemetry.sdk",
    "text": "tokenizers",
    "charts": "matplotlib",
    "s3": "boto3",
    "events": "zmq",
}
CROWDED = 0.75  # share of the memory limit; beyond it engines and the page cache have little left
_ARENA_GLOB = arena_name(b"").replace("-.", "-*.")


def look_at_machine(arena_dir: Path, arena_bytes: int, root: Path = Path("/")) -> Iterator[Finding]:
    """arena_bytes: of the DRAM tier that is wanted, or runs."""
    yield _python()
    yield ok("packages", _packages())
    yield ok("extras", _extras())
    yield _byte_order()
    yield _processors(root)
    yield _memory(arena_bytes, root)
    if not _arenas(arena_dir):
        yield _available(arena_bytes, root)
    yield _shared_memory(arena_dir, arena_bytes)
    yield _huge_pages(arena_dir, root)
    yield _open_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], arena_bytes, root)


def _python() -> Finding:
    said = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.release()}"
    if sys.version_info[:2] < MIN_PYTHON:
        return fail("python", said, "install Python 3.11 or later")
    if platform.system() != "Linux":
        return fail("python", said, "run it on Linux: shared memory, O_DIRECT and cgroups are its own")
    return ok("python", said)


def _packages() -> str:
    said = [f"kvterrace {version('kvterrace')}"]
    for name in PACKAGES:
        try:
            said.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            said.append(f"{name} missing")
    return ", ".join(said)


def _extras() -> str:
    there = [name for name, module in EXTRAS.items() if _importable(module)]
    absent = [name for name in EXTRAS if name not in there]
    more = f"; not installed: {', '.join(absent)} (pip install 'kvterrace[NAME]')" if absent else ""
    return (", ".join(there) or "none") + more


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its parent
        return False


def _byte_order() -> Finding:
    if sys.byteorder != "little":
        return fail("byte order", f"{sys.byteorder}-endian", "use a little-endian machine: all formats are")
    return ok("byte order", "little-endian")


def _processors(root: Path) -> Finding:
    count = float(len(os.sched_getaffinity(0)))
    quota = _cpu_quota(root)
    said = f"{count:.0f} processors" + (f", of which the container may use {quota:.1f}" if quota else "")
    if min(count, quota or count) < 2:
        return warn("processors", said, "give it two: copies and the event loop share one otherwise")
    return ok("processors", said)


def _cpu_quota(root: Path) -> float:
    """Processors that the cgroup (v2, then v1) allows; 0 = no limit."""
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return 0.0 if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota = (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text()
        period = (root / "sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text()
        return max(0, int(quota)) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0


def _memory(arena_bytes: int, root: Path) -> Finding:
    limit, what = memory_limit_bytes(root), "memory"
    said = f"{format_bytes(limit)} for this machine or container, the DRAM tier takes {format_bytes(arena_bytes)}"
    if arena_bytes > limit:
        return fail(what, said, "choose a smaller --dram, or raise the container's memory limit")
    if arena_bytes > limit * CROWDED:
        do = (
            "leave more to engines and the system: a smaller --dram; shared memory counts against the container's limit"
        )
        return warn(what, said, do)
    return ok(what, said)


def _available(arena_bytes: int, root: Path) -> Finding:
    """A sidecar takes all of its arena as it starts."""
    what = "free memory"
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return ok(what, "the system does not say")
    said = f"{format_bytes(free)} can be had now"
    if arena_bytes > free:
        return warn(
            what, f"{said}, the DRAM tier takes {format_bytes(arena_bytes)}", "end something, or a smaller --dram"
        )
    return ok(what, said)


def _arenas(directory: Path) -> list[Path]:
    """Of sidecars that run, or have died."""
    return [path for path in directory.glob(_ARENA_GLOB) if path.is_file()]


def _shared_memory(directory: Path, arena_bytes: int) -> Finding:
    """Room for the arena, those that are there counted as room: a sidecar that runs has one."""
    what = f"shared memory {directory}"
    try:
        stat = os.statvfs(directory)
    except OSError as error:
        return fail(what, error.strerror or str(error), "choose another --arena-dir")
    if not os.access(directory, os.W_OK | os.X_OK):
        return fail(what, "cannot be written by this user", "choose another --arena-dir, or chmod 1777 it")
    free, whole = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    arenas = [path.stat().st_size for path in _arenas(directory)]
    said = f"{format_bytes(free)} free of {format_bytes(whole)}"
    if arenas:
        said += f", {len(arenas)} arenas with {format_bytes(sum(arenas))} in it"
    if not arenas and arena_bytes > free:
        do = (
            f"choose a smaller --dram, or enlarge it: mount -o remount,size=... {directory}, docker run --shm-size=, "
            "in Kubernetes an emptyDir of medium Memory"
        )
        return fail(what, said, do)
    return ok(what, said)


def _huge_pages(directory: Path, root: Path) -> Finding:
    """Whether shared memory may have pages of 2 MiB; half the time of filling it, where it may."""
    what, mounted = "huge pages", mount_options(directory, root)
    try:
        words = (root / "sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text().split()
    except OSError:
        return ok(what, "this kernel has none for shared memory")
    chosen = next((word.strip("[]") for word in words if word.startswith("[")), "never")
    by_mount = next((each.removeprefix("huge=") for each in mounted if each.startswith("huge=")), "")
    if by_mount in ("always", "within_size") or chosen in ("always", "within_size", "force"):
        return ok(what, f"the arena gets them ({by_mount or chosen})")
    said = f"the arena has pages of 4 KiB (shmem_enabled is {chosen})"
    if chosen == "deny":
        return ok(what, said)
    return Finding(what, Level.OK, said, "quicker: mount -t tmpfs -o huge=always,size=... and --arena-dir there")


def mount_options(directory: Path, root: Path) -> list[str]:
    """Of the mount that holds it."""
    where, best, found = directory.resolve(), -1, list[str]()
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        left, _, right = line.partition(" - ")
        mounted = Path(left.split(" ")[4])
        if where.is_relative_to(mounted) and len(mounted.parts) >= best:
            best = len(mounted.parts)
            found = [*left.split(" ")[5].split(","), *right.split(" ")[-1].split(",")]
    return found


def _open_files(soft: int, hard: int) -> Finding:
    what = "open files"
    if soft == resource.RLIM_INFINITY or soft >= MIN_FILES:
        return ok(what, f"limit {'none' if soft == resource.RLIM_INFINITY else f'{soft:,}'}")
    do = f"ulimit -n {MIN_FILES}, LimitNOFILE={MIN_FILES} in systemd, or nofile in the container's options"
    hard_said = "none" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return warn(what, f"limit {soft:,} (at most {hard_said}); connections and segments need some each", do)


def _locked_memory(soft: int, arena_bytes: int, root: Path) -> Finding:
    what = "locked memory"
    said = "no limit" if soft == resource.RLIM_INFINITY else f"limit {format_bytes(soft)}"
    gpu = any((root / "dev").glob("nvidia[0-9]*"))
    if not gpu or soft == resource.RLIM_INFINITY or soft >= arena_bytes:
        return ok(what, said if gpu else f"{said}; of use to GPUs only, and there is none here")
    return warn(what, f"{said}, less than the arena", "engines pin the arena for their GPU: ulimit -l unlimited")
