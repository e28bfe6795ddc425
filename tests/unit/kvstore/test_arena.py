"""The shared-memory file: made whole or not at all, found only by who knows it, gone when its owner is."""

import fcntl
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from kvterrace.kvstore import memory
from kvterrace.kvstore.arena import Arena, ArenaView, remove_stale
from kvterrace.kvstore.errors import ArenaError

pytestmark = pytest.mark.unit

MIB = 1 << 20


@pytest.fixture
def arena(tmp_path):
    made = Arena.create(MIB, directory=tmp_path)
    yield made
    made.close()


def attach(arena, **options):
    return ArenaView.attach(arena.path, block_bytes=5000, slot_bytes=8192, **options)


def test_views_share_bytes_and_generations(arena):
    one, two = attach(arena), attach(arena, boot_id=arena.boot_id, prefault=False)
    one.block(6)[:] = 9
    assert (two.run(4, 3)[8192:16384] == 9).sum() == 8192, "slots of two pages: 4, 6, 8"
    assert (two.block_bytes, two.slot_bytes, two.boot_id) == (5000, 8192, arena.boot_id)
    assert two.generation(6) == 0
    arena.free_slots(np.array([6]))
    assert (two.generation(6), two.generation(7)) == (1, 0)
    one.close()
    two.close()


def test_prefaulting_ends_and_changes_nothing(arena):
    owner = arena.view(5000, 8192)
    owner.data[:] = np.arange(len(owner.data), dtype=np.uint64) % 251
    view = attach(arena)
    assert view.wait_prefault(30)
    assert (view.data == owner.data).all()
    view.close()


def test_prefaulting_works_without_the_kernel_call(arena, monkeypatch):
    monkeypatch.setattr(memory, "_MADV_POPULATE_WRITE", -1)
    view = attach(arena)
    assert view.wait_prefault(30)
    view.close()


def test_arrays_outlive_view_and_owner(arena):
    """An engine must not die because the sidecar restarts."""
    view = attach(arena)
    block = view.block(2)
    view.close()
    arena.close()
    block[:] = 3
    assert block.sum() == 3 * 8192
    with pytest.raises(ArenaError):
        view.block(2)
    with pytest.raises(ArenaError):
        view.generation(2)
    view.close()


@pytest.mark.parametrize(("slot", "n"), [(-1, 1), (255, 1), (256, 1), (0, 129), (0, -1)])
def test_slots_outside_of_the_arena_are_refused(arena, slot, n):
    view = attach(arena, prefault=False)
    with pytest.raises(ArenaError):
        view.run(slot, n)
    view.close()


def test_only_the_arena_that_was_meant_is_attached(arena, tmp_path):
    with pytest.raises(ArenaError, match="another start"):
        attach(arena, boot_id=bytes(16))
    with pytest.raises(ArenaError, match="cannot be opened"):
        ArenaView.attach(tmp_path / "none", block_bytes=1, slot_bytes=4096)
    good = arena.path.read_bytes()
    for name, content, text in (
        ("short", b"KVT", "too short"),
        ("magic", b"X" + good[1:], "not an arena"),
        ("version", good[:8] + b"\xff" + good[9:], "version 255"),
        ("truncated", good[:-4096], "not what its header says"),
        ("grown", good + bytes(4096), "not what its header says"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArenaError, match=text):
            ArenaView.attach(tmp_path / name, block_bytes=1, slot_bytes=4096)


def test_the_file_is_allocated_private_and_unlinked_at_close(tmp_path):
    arena = Arena.create(MIB + 1, directory=tmp_path)
    assert arena.capacity_bytes == MIB
    stat = arena.path.stat()
    assert stat.st_blocks * 512 >= stat.st_size > MIB, "a sparse file would end in SIGBUS"
    assert stat.st_mode & 0o077 == 0
    arena.close()
    arena.close()
    assert list(tmp_path.iterdir()) == []


def test_arenas_of_dead_owners_are_removed_and_those_of_living_ones_kept(tmp_path):
    code = (
        "import os, sys, pathlib; from kvterrace.kvstore.arena import Arena;"
        "Arena.create(1 << 20, directory=pathlib.Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], check=False).returncode == 9
    (stale,) = tmp_path.iterdir()
    (tmp_path / "kvterrace.toml").write_text("not ours to remove")
    one = Arena.create(MIB, directory=tmp_path)
    assert not stale.exists()
    two = Arena.create(MIB, directory=tmp_path)
    assert remove_stale(tmp_path) == []
    assert one.path.exists()
    one.close()
    two.close()
    assert [path.name for path in tmp_path.iterdir()] == ["kvterrace.toml"]


def test_a_file_taken_for_stale_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    """Another store starts between our creating the file and our locking it."""
    real, removed = fcntl.flock, []

    def flock(fd, operation):
        if not removed:
            removed.append(True)
            for path in tmp_path.iterdir():
                path.unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    arena = Arena.create(MIB, directory=tmp_path)
    assert arena.path.exists()
    arena.close()


def test_too_small_a_directory_is_an_error_with_numbers_and_advice(tmp_path, monkeypatch):
    small = SimpleNamespace(f_bavail=16 * 256, f_frsize=4096, f_blocks=64 * 256)
    monkeypatch.setattr(os, "statvfs", lambda _: small)
    with pytest.raises(ArenaError) as caught:
        Arena.create(32 * MIB, directory=tmp_path)
    text = str(caught.value)
    assert re.search(r"needs 32 MiB", text)
    assert "16 MiB free of 64 MiB" in text
    assert "--shm-size" in text
    assert "smaller capacity" in text
    assert list(tmp_path.iterdir()) == []


def test_no_space_while_allocating_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArenaError, match="No space left"):
        Arena.create(MIB, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ArenaError, match="nowhere"):
        Arena.create(MIB, directory=tmp_path / "nowhere")


def test_more_than_the_container_may_have_is_refused():
    with pytest.raises(ArenaError, match="memory limit"):
        Arena.anonymous(1 << 50)
    with pytest.raises(ArenaError, match="smaller than one page"):
        Arena.anonymous(100)


def fake_root(tmp_path, cgroup: str, limits: dict[str, str]):
    for path, text in {"proc/meminfo": "MemTotal: 1000 kB\n", "proc/self/cgroup": cgroup, **limits}.items():
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("cgroup", "limits", "wanted"),
    [
        ("0::/\n", {}, 1024000),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "5000\n"}, 5000),
        ("0::/seen/from/host\n", {"sys/fs/cgroup/memory.max": "6000\n"}, 6000),
        ("4:memory:/x\n0::/\n", {"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "7000\n"}, 7000),
        ("4:memory:/x\n", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 1024000),
    ],
)
def test_the_limit_is_the_containers_not_the_machines(tmp_path, cgroup, limits, wanted):
    assert memory.memory_limit_bytes(fake_root(tmp_path, cgroup, limits)) == wanted


def test_the_default_capacity_fits():
    stat = os.statvfs("/dev/shm")
    capacity = memory.default_capacity_bytes(memory.Path("/dev/shm"))
    assert 0 < capacity <= min(stat.f_bavail * stat.f_frsize, memory.memory_limit_bytes())
    assert capacity % 4096 == 0
