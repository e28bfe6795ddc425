"""What a failing device does: it steps aside, the rest goes on, the operator is told. And what a user must mend."""

import errno
import os
import shutil

import pytest
from kvterrace.kvstore.errors import NvmeError
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Stored
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.kvstore.tiers.nvme.breaker import FIRST_BACKOFF_S, MAX_BACKOFF_S, Breaker

from .shelf import CAPACITY_BYTES, SEGMENT_BYTES, GatedFiles, as_killed, held, key, numbers, open_tier, record, wanted

pytestmark = pytest.mark.unit


async def filled(path, files, count=12, **options):
    tier = open_tier(path, files=files, **options)
    for number in range(count):
        assert await tier.put([record(number)], deadline_s=10) == [Stored()]
    return tier


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EIO])
async def test_a_device_that_takes_nothing_is_still_read(tmp_path, code):
    now, files = [0.0], GatedFiles()
    tier = await filled(tmp_path / "a", files, clock=lambda: now[0])
    files.fail = {"pwritev": code}
    given = [(await tier.put([record(number)], deadline_s=10))[0] for number in range(20, 26)]
    assert given[0] == Failed("io")
    assert given[-1] == Failed("breaker")
    assert os.strerror(code).lower() in tier.devices()[0].state
    assert await held(tier, [record(number) for number in range(12)]) == 12
    files.fail = {}
    now[0] += MAX_BACKOFF_S + 1
    assert await tier.put([record(40)], deadline_s=10) == [Stored()]
    assert tier.devices()[0].state == "ok"
    assert tier.devices()[0].errors > 0
    tier.check()
    await tier.close()


async def test_a_block_that_cannot_be_read_is_not_waited_for_again(tmp_path):
    files = GatedFiles()
    tier = await filled(tmp_path / "a", files)
    files.fail = {"preadv": errno.EIO}
    assert await tier.get([wanted(record(3))], deadline_s=10) == [Failed("io")]
    files.fail = {}
    assert await tier.get([wanted(record(3))], deadline_s=10) == [Miss()]
    assert await tier.put([record(3)], deadline_s=10) == [Stored()]
    assert await held(tier, [record(3)]) == 1
    await tier.close()


async def test_a_device_that_reads_nothing_answers_at_once_and_its_blocks_are_kept(tmp_path):
    now, files = [0.0], GatedFiles()
    tier = await filled(tmp_path / "a", files, clock=lambda: now[0])
    files.fail = {"preadv": errno.EIO}
    answers = [(await tier.get([wanted(record(number))], deadline_s=10))[0] for number in range(12)]
    assert answers[:3] == [Failed("io")] * 3
    assert answers[3:] == [Failed("breaker")] * 9
    assert "reads paused: input/output error" in tier.devices()[0].state
    files.fail = {}
    now[0] += FIRST_BACKOFF_S + 0.1
    assert 0 < await held(tier, [record(number) for number in range(12)]) < 9  # one request is the probe
    assert await held(tier, [record(number) for number in range(12)]) == 9
    await tier.close()


async def test_our_own_want_of_file_handles_loses_no_block(tmp_path):
    class Short(GatedFiles):
        short = False

        def open_segment(self, path, access, *, direct):
            if self.short:
                raise OSError(errno.EMFILE, "too many open files")
            return super().open_segment(path, access, direct=direct)

    files = Short()
    tier = await filled(tmp_path / "a", files)
    files.short = True
    for _ in range(5):
        assert await tier.get([wanted(record(3))], deadline_s=10) == [Failed("io")]
    files.short = False
    assert await held(tier, [record(number) for number in range(12)]) == 12
    await tier.close()


async def test_puts_go_to_the_other_path(tmp_path):
    class Half(GatedFiles):
        broken = False

        def open_segment(self, path, access, *, direct):
            if self.broken and access == "create" and path.parent.name == "a":
                raise OSError(errno.EROFS, "read-only")
            return super().open_segment(path, access, direct=direct)

    files = Half()
    files.broken = True
    tier = open_tier(tmp_path / "a", tmp_path / "b", files=files)
    given = [(await tier.put([record(number)], deadline_s=10))[0] for number in range(30)]
    assert given.count(Stored()) >= 29
    assert [device.state == "ok" for device in tier.devices()] == [False, True]
    await tier.close()


async def test_a_directory_that_is_gone_is_a_miss_not_an_error(tmp_path):
    tier = await filled(tmp_path / "a", GatedFiles())
    shutil.rmtree(tmp_path / "a")
    answers = await tier.get([wanted(record(number)) for number in range(12)], deadline_s=10)
    assert not any(isinstance(answer, Hit) for answer in answers)
    await tier.put([record(number) for number in range(50, 90)], deadline_s=10)
    assert await tier.flush(deadline_s=10) in (True, False)
    await tier.close()


async def test_a_device_that_is_dead_at_the_start_leaves_the_others(tmp_path, caplog):
    class Dead(GatedFiles):
        def listdir(self, path):
            if path.name == "a":
                raise OSError(errno.EIO, "Input/output error")
            return super().listdir(path)

    tier = open_tier(tmp_path / "a", tmp_path / "b", files=Dead())
    assert "unusable" in tier.devices()[0].state
    assert await tier.put([record(1)], deadline_s=10) == [Stored()]
    assert await held(tier, [record(1)]) == 1
    await tier.close()


async def test_two_stores_on_one_path_are_refused_and_a_closed_one_lets_go(tmp_path):
    tier = open_tier(tmp_path / "a")
    with pytest.raises(NvmeError, match="another store"):
        open_tier(tmp_path / "b", tmp_path / "a")
    other = open_tier(tmp_path / "b")  # what was locked before the refusal is free again
    await other.close()
    await tier.close()
    again = open_tier(tmp_path / "a")
    await again.close()


def test_what_only_the_user_can_mend_names_the_path(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(NvmeError, match="file"):
        open_tier(tmp_path / "file")
    with pytest.raises(NvmeError, match="three segments"):
        open_tier(tmp_path / "a", capacity_bytes=3 * SEGMENT_BYTES - 1)
    with pytest.raises(NvmeError, match="twice"):
        open_tier(tmp_path / "a", tmp_path / "." / "a")


async def test_the_least_cap_still_works(tmp_path):
    least = 3 * SEGMENT_BYTES + 4 * 4096
    tier = NvmeTier.open([NvmePath(tmp_path / "a", least, min_free_bytes=0)], segment_bytes=SEGMENT_BYTES)
    for number in range(100):
        await tier.drop([key(number - 10)])
        assert await tier.put([record(number)], deadline_s=10) == [Stored()]
        assert tier.usage().used_bytes <= least < CAPACITY_BYTES
    await tier.close()


async def test_a_clear_outlives_a_kill_right_after_it_and_takes_only_its_namespace(tmp_path):
    tier = open_tier(tmp_path / "a")
    mine = [record(number) for number in range(20)]
    theirs = [record(number, fingerprint=b"t" * 32) for number in range(50, 60)]
    for at in range(10):
        await tier.put([mine[2 * at], theirs[at], mine[2 * at + 1]], deadline_s=10)
    assert await tier.clear(mine[0].fingerprint) == 20
    killed = open_tier(as_killed(tmp_path / "a", tmp_path / "b"))
    assert numbers(killed) == set(range(50, 60))
    assert await held(tier, theirs) == 10
    assert await tier.get([wanted(mine[0])], deadline_s=10) == [Miss()]
    assert await tier.clear(None) == 10
    assert tier.usage().live_bytes == 0
    await tier.put(mine[:3], deadline_s=10)
    await tier.close()
    again = open_tier(tmp_path / "a")
    assert numbers(again) == {0, 1, 2}
    await again.close()
    await killed.close()


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through():
    now = [0.0]
    breaker = Breaker("reads", lambda: now[0])
    assert not breaker.failure("slow", sure=False)
    breaker.success()
    assert [breaker.failure("slow", sure=False) for _ in range(3)] == [False, False, True]
    assert not breaker.allow()
    breaker.failure("slow", sure=False)  # one that was on its way
    now[0] += FIRST_BACKOFF_S
    assert [breaker.allow(), breaker.allow()] == [True, False]
    breaker.failure("slow", sure=False)
    assert "slow; next try in 2 s" in breaker.state()
    for _ in range(10):
        now[0] += MAX_BACKOFF_S
        assert breaker.allow()
        breaker.failure("slow", sure=False)
    now[0] += MAX_BACKOFF_S
    assert breaker.allow()
    breaker.success()
    assert (breaker.closed, breaker.state()) == (True, "")
    assert breaker.failure("gone", sure=True)
