"""What doctor says of machines and disks, made up below a folder that stands for the root."""

import fcntl
import os
import resource
from pathlib import Path

import pytest
from kvterrace.kvstore.doctor import machine
from kvterrace.kvstore.doctor.disk import LEAST_BYTES, look_at_disk
from kvterrace.kvstore.doctor.finding import Finding, Level
from kvterrace.kvstore.doctor.machine import look_at_machine

pytestmark = pytest.mark.unit

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 16 GiB, limited to nothing, /shm of it mounted with pages of 4 KiB."""
    made = tmp_path / "root"
    files = {
        "proc/meminfo": f"MemTotal:       {16 * GIB // 1024} kB\nMemAvailable:   1000 kB\n",
        "proc/self/cgroup": "0::/pod\n",
        "proc/self/mountinfo": "1 0 0:1 / / rw,relatime - ext4 /dev/sda rw\n",
        "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
        "sys/fs/cgroup/pod/memory.max": "max\n",
    }
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    (made / "dev").mkdir()
    return made


def found(findings, what: str) -> Finding:
    return next(each for each in findings if each.what.startswith(what))


def looked(root: Path, what: str, arena_bytes: int = GIB) -> Finding:
    return found(look_at_machine(Path("/dev/shm"), arena_bytes, root), what)


def test_a_container_is_measured_by_its_own_limit(root: Path) -> None:
    assert looked(root, "memory").level is Level.OK
    (root / "sys/fs/cgroup/pod/memory.max").write_text(str(2 * GIB))
    assert looked(root, "memory", GIB).level is Level.OK
    assert looked(root, "memory", 7 * GIB // 4).level is Level.WARN
    beyond = looked(root, "memory", 3 * GIB)
    assert beyond.level is Level.FAIL
    assert "2.0 GiB for this machine or container" in beyond.said
    assert "--dram" in beyond.do


def test_memory_that_is_not_free_now_is_told_unless_a_sidecar_has_it_already(root: Path, tmp_path: Path) -> None:
    assert found(look_at_machine(tmp_path, GIB, root), "free memory").level is Level.WARN
    assert found(look_at_machine(tmp_path, 4096, root), "free memory").level is Level.OK
    (tmp_path / f"kvterrace-{'0' * 32}.arena").touch()
    assert not [each for each in look_at_machine(tmp_path, GIB, root) if each.what == "free memory"]


def test_half_a_processor_is_told(root: Path) -> None:
    (root / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert looked(root, "processors").level is Level.WARN
    (root / "sys/fs/cgroup/cpu.max").write_text("max 100000\n")
    assert "container" not in looked(root, "processors").said


def test_an_arena_larger_than_shared_memory_fails_with_what_to_do(root: Path, tmp_path: Path) -> None:
    few = looked_at = found(look_at_machine(tmp_path, 1 << 50, root), "shared memory")
    assert few.level is Level.FAIL
    assert "--shm-size" in looked_at.do
    (tmp_path / f"kvterrace-{'0' * 32}.arena").write_bytes(bytes(4096))
    there = found(look_at_machine(tmp_path, 1 << 50, root), "shared memory")
    assert there.level is Level.OK  # a sidecar that runs has its room already
    assert "1 arenas with 4.0 KiB" in there.said
    assert found(look_at_machine(tmp_path / "absent", 1, root), "shared memory").level is Level.FAIL


def test_huge_pages_come_from_the_system_or_the_mount(root: Path) -> None:
    assert "quicker" in looked(root, "huge pages").do
    (root / "proc/self/mountinfo").write_text("1 0 0:1 / /dev/shm rw - tmpfs tmpfs rw,huge=always\n")
    assert "gets them (always)" in looked(root, "huge pages").said


def test_few_open_files_are_told(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (256, 1024))
    few = looked(root, "open files")
    assert few.level is Level.WARN
    assert "LimitNOFILE" in few.do


def test_locked_memory_matters_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (1 << 20, 1 << 20))
    assert looked(root, "locked memory").level is Level.OK
    (root / "dev/nvidia0").touch()
    assert looked(root, "locked memory").level is Level.WARN
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert looked(root, "locked memory").level is Level.OK


def test_a_good_disk_is_ok_and_nothing_stays_on_it(tmp_path: Path) -> None:
    findings = list(look_at_disk(tmp_path, 0, 1))
    assert not [each for each in findings if each.level is Level.FAIL], findings
    assert found(findings, f"nvme {tmp_path} O_DIRECT").said.startswith("a page written, synced and read back")
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_with_a_path_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is not a directory" in found(look_at_disk(tmp_path / "file", 0, 1), "nvme").said
    assert "too few" in found(look_at_disk(tmp_path, LEAST_BYTES - 1, 1), "nvme").said
    full = found(look_at_disk(tmp_path, 0, 1 << 60), "nvme")
    assert full.level is Level.FAIL
    assert "--nvme-min-free" in full.do
    assert any(each.level is Level.FAIL for each in look_at_disk(tmp_path, 1 << 60, 1))  # more than the disk has
    assert "will be made" in found(look_at_disk(tmp_path / "a" / "b", 0, 1), "nvme").said


def test_a_disk_that_spins_or_is_mounted_read_only_is_said(tmp_path: Path, root: Path) -> None:
    number = tmp_path.stat().st_dev
    queue = root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    (queue / "queue").mkdir(parents=True)
    (queue / "queue/rotational").write_text("1\n")
    what = f"nvme {tmp_path} device"
    assert found(look_at_disk(tmp_path, 0, 1, root), what).level is Level.WARN
    (queue / "queue/rotational").write_text("0\n")
    assert found(look_at_disk(tmp_path, 0, 1, root), what).said.startswith("solid state")
    (root / "proc/self/mountinfo").write_text("1 0 0:1 / / ro,relatime - ext4 /dev/sda ro\n")
    assert found(look_at_disk(tmp_path, 0, 1, root), what).level is Level.FAIL


def test_a_running_stores_path_is_known(tmp_path: Path) -> None:
    assert not [each for each in look_at_disk(tmp_path, 0, 1) if "owner" in each.what]
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    assert "a store was here" in found(look_at_disk(tmp_path, 0, 1), f"nvme {tmp_path} owner").said
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert "a running store has it" in found(look_at_disk(tmp_path, 0, 1), f"nvme {tmp_path} owner").said
    os.close(lock)
