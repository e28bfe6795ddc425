"""The disk in memory answers as a real one does, where a real one is bound to answer in one way."""

import errno
import mmap
import os
import random
from pathlib import Path

import pytest
from kvterrace.kvstore.tiers.nvme.files import OsFiles

from .disk import PAGE, MemoryDisk
from .faults import Fault, FaultyFiles

pytestmark = pytest.mark.unit


@pytest.fixture(params=["memory", "real"])
def place(request, tmp_path):
    return (MemoryDisk().mount(), Path("/disk")) if request.param == "memory" else (OsFiles(), tmp_path / "disk")


def pages(content: bytes) -> memoryview:
    made = mmap.mmap(-1, len(content))
    made[:] = content
    return memoryview(made)


def error_of(call) -> str:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "none"


def test_it_reads_writes_renames_and_locks_like_a_real_file_system(place):
    files, where = place
    assert error_of(lambda: files.listdir(where)) == "ENOENT"
    files.mkdir(where)
    files.mkdir(where)
    one, two = where / "one", where / "two"
    handle = files.open_segment(one, "create", direct=False)
    assert error_of(lambda: files.open_segment(one, "create", direct=False)) == "EEXIST"
    assert error_of(lambda: files.open_segment(two, "read", direct=False)) == "ENOENT"
    assert files.pwritev(handle, [pages(b"a" * PAGE), pages(b"b" * PAGE)], PAGE) == 2 * PAGE
    into = [pages(bytes(PAGE)) for _ in range(4)]
    assert files.preadv(handle, into, 0) == 3 * PAGE
    assert [bytes(each[:1]) for each in into] == [b"\0", b"a", b"b", b"\0"]
    files.fallocate(handle, 8 * PAGE)
    assert files.size(handle) == 8 * PAGE
    files.truncate(handle, 2 * PAGE)
    assert (files.size(handle), files.preadv(handle, into, 2 * PAGE)) == (2 * PAGE, 0)
    files.rename(one, two)
    files.fdatasync(handle)
    files.sync_directory(where)
    assert files.listdir(where) == ["two"]
    files.unlink(two)
    assert files.preadv(handle, into, PAGE) == PAGE  # open: its bytes are still there
    files.close(handle)
    assert error_of(lambda: files.size(handle)) == "EBADF"
    assert error_of(lambda: files.unlink(two)) == "ENOENT"
    lock = files.lock(where / "lock")
    with pytest.raises(BlockingIOError):
        files.lock(where / "lock")
    files.close(lock)
    files.close(files.lock(where / "lock"))


def test_direct_handles_insist_on_alignment():
    files = MemoryDisk().mount()
    files.mkdir(Path("/disk"))
    handle = files.open_segment(Path("/disk/one"), "create", direct=True)
    assert files.pwritev(handle, [pages(bytes(PAGE))], 0) == PAGE
    for buffer, offset in ((pages(bytes(PAGE))[1:], 0), (pages(bytes(2 * PAGE))[8 : PAGE + 8], 0)):
        assert error_of(lambda b=buffer, o=offset: files.pwritev(handle, [b], o)) == "EINVAL"
    assert error_of(lambda: files.preadv(handle, [pages(bytes(PAGE))], 512)) == "EINVAL"


def test_a_power_cut_keeps_what_was_synced_and_may_take_the_rest():
    kept, taken = set(), set()
    for seed in range(60):
        disk = MemoryDisk()
        files = disk.mount()
        files.mkdir(Path("/disk"))
        synced = files.open_segment(Path("/disk/synced"), "create", direct=True)
        files.pwritev(synced, [pages(b"a" * PAGE)], 0)
        files.fdatasync(synced)
        files.sync_directory(Path("/disk"))
        files.pwritev(synced, [pages(b"b" * PAGE)], PAGE)
        files.open_segment(Path("/disk/late"), "create", direct=True)
        disk.power_cut(files, random.Random(seed))
        assert error_of(lambda files=files: files.listdir(Path("/disk"))) == "ENODEV"
        data = bytes(disk.files()[Path("/disk/synced")].data)
        assert data[:PAGE] == b"a" * PAGE
        (kept if data[PAGE:] == b"b" * PAGE else taken).add(seed)
        (kept if Path("/disk/late") in disk.files() else taken).add(-seed)
    assert all(any(sign * seed > 0 for seed in half) for half in (kept, taken) for sign in (1, -1))


def test_a_full_disk_says_so_and_open_files_count_until_they_are_closed():
    disk = MemoryDisk(capacity_bytes=4 * PAGE)
    files = disk.mount()
    files.mkdir(Path("/disk"))
    one = files.open_segment(Path("/disk/one"), "create", direct=True)
    files.fallocate(one, 3 * PAGE)
    two = files.open_segment(Path("/disk/two"), "create", direct=True)
    assert error_of(lambda: files.fallocate(two, 2 * PAGE)) == "ENOSPC"
    files.unlink(Path("/disk/one"))
    assert (disk.used_bytes, files.free_bytes(Path("/disk"))) == (3 * PAGE, PAGE)
    files.close(one)
    files.fallocate(two, 2 * PAGE)
    assert (disk.used_bytes, disk.peak_bytes) == (2 * PAGE, 3 * PAGE)


def test_faults_strike_the_calls_they_name(tmp_path):
    faulty = FaultyFiles(OsFiles(), Fault("pwritev", 1, "EIO"))
    handle = faulty.open_segment(tmp_path / "one", "create", direct=False)
    write = lambda: faulty.pwritev(handle, [pages(b"a" * 2 * PAGE)], 0)  # noqa: E731
    assert [error_of(write) for _ in range(3)] == ["none", "EIO", "none"]
    for kind, done, on_disk in (("short", PAGE, PAGE), ("lost", 2 * PAGE, 0), ("none", 0, 0)):
        os.truncate(tmp_path / "one", 0)
        faulty.fault = Fault("pwritev", 0, kind, times=99)
        assert write() == done
        assert faulty.size(handle) == on_disk
    faulty.fault = Fault("pwritev", 0, "flip", times=99)
    write()
    written = (tmp_path / "one").read_bytes()
    assert sum(byte != ord("a") for byte in written) == 1
    assert faulty.fault.fired == 1
    faulty.close(handle)
