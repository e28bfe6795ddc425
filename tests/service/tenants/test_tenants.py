"""A sidecar that two tenants share: who they are comes from their tokens, what they may from the operator."""

import json
import subprocess
from dataclasses import replace

import httpx
import pytest
from kvterrace.kvstore.errors import SessionRefused
from kvterrace.kvstore.service.admin import CallRefused, clear_store, fetch_status, set_quota
from kvterrace.kvstore.service.channel import Place
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.service

BLOCK_BYTES = 4096
B = 16


async def test_two_tenants_share_a_sidecar_and_nothing_in_it_but_the_listed_head(
    shared, people, connect, tools, kvterrace, folder
) -> None:
    served = shared()
    there = served.announced("serving on 127")
    ada = await connect(there, credentials=people["ada"])
    zoe = await connect(there, credentials=people["zoe"])
    local = await connect(served.address)
    prompt = tools.tokens(10)
    assert await tools.save(ada, prompt)

    async def copied() -> bool:
        return any(each.tenant == "*" and each.blocks == 4 for each in (await served.status()).namespaces)

    await tools.until(copied, 5.0)
    for other in (zoe, local):
        given = await other.acquire(prompt, skip=0, deadline_s=2.0)
        assert tools.read(given) == [tools.content(block) for block in range(4)], "the head, and nothing behind it"
        assert (given.tiers, given.reason) == ({"dram": 4 * B}, "never_seen")
        await other.release(given.lease)
    given = await zoe.acquire(tools.tokens(10, first=5000), skip=0, deadline_s=2.0)
    assert (given.slots, given.reason) == ((), "never_seen")

    with pytest.raises(CallRefused, match="may not"):
        await fetch_status(Place(there, people["ada"]), check=False, timeout_s=3.0)
    asked = pb.QuotaRequest(tenant="acme", set=["dram_quota"])
    with pytest.raises(CallRefused, match="may not"):
        await set_quota(Place(there, people["ada"]), asked, timeout_s=3.0)

    oli = ["--address", there, *people.flags("oli")]
    said = kvterrace("quota", "acme", "--dram", "32KiB", "--dram-floor", "16KiB", *oli)
    assert said.stdout.splitlines()[0] == "acme dram: 40.0 KiB used, quota 32.0 KiB, floor 16.0 KiB", said.stderr
    assert await tools.save(ada, tools.tokens(3, first=9000))
    usage = {each.name: each for each in (await served.status()).tenants}
    assert usage["acme"].used_bytes["dram"] == 8 * BLOCK_BYTES
    assert (usage["zeta"].used_bytes["dram"], usage["zeta"].hit_tokens, usage["zeta"].sessions) == (
        4 * BLOCK_BYTES,
        4 * B,
        1,
    )
    async with httpx.AsyncClient(base_url=served.announced("http on")) as client:
        text = (await client.get("/metrics", headers={"authorization": "Bearer of-oli"})).text
    assert 'kvterrace_tenant_used_bytes{tenant="acme",tier="dram"} 32768.0' in text
    assert 'kvterrace_tenant_quota_bytes{tenant="acme",tier="dram"} 32768.0' in text
    assert 'kvterrace_tenant_hit_tokens_total{tenant="zeta"} 64.0' in text

    for wrong, why in (
        (pb.QuotaRequest(tenant="acme", dram_quota=8192, set=["dram_quota"]), "below dram_floor"),
        (pb.QuotaRequest(tenant="nobody", set=["dram_quota"]), "knows no tenant 'nobody'"),
        (pb.QuotaRequest(tenant="*", set=["dram_quota"]), "knows no tenant"),
        (pb.QuotaRequest(tenant="acme"), "set: must name some of"),
        (pb.QuotaRequest(tenant="acme", set=["dram"]), "set: must name some of"),
    ):
        with pytest.raises(CallRefused, match=why.replace("*", r"\*")):
            await set_quota(Place(there, people["oli"]), wrong, timeout_s=3.0)
    for name, fingerprint, why in (("nobody", b"", "no tenant 'nobody'"), ("zeta", bytes(32), "not together")):
        with pytest.raises(CallRefused, match=why):
            await clear_store(Place(there, people["oli"]), fingerprint, tenant=name, timeout_s=3.0)
    cleared = kvterrace("clear", "--tenant", "acme", *oli)
    assert cleared.stdout.startswith("dropped 8 blocks ("), cleared.stderr
    assert {each.name: each.used_bytes["dram"] for each in (await served.status()).tenants}["zeta"] == 4 * BLOCK_BYTES
    lines = [json.loads(line) for line in (folder / "audit").read_text().splitlines()]
    told = [(each["identity"], each["call"], each["outcome"], each.get("tenant")) for each in lines]
    assert told[0] == ("ada", "SetQuota", "PERMISSION_DENIED", "acme")
    assert told[1] == ("oli", "SetQuota", "OK", "acme")
    assert told[-1] == ("oli", "Clear", "OK", "acme")
    assert lines[1]["dram_quota"] == 32768
    assert (await served.status()).check_error == ""


async def test_what_a_tenants_weights_look_like_is_not_told_to_another(shared, people, connect, namespace) -> None:
    served = shared()
    there = served.announced("serving on 127")
    other = replace(namespace, layout=replace(namespace.layout, layers=3))
    await connect(there, credentials=people["ada"])
    await connect(there, other, credentials=people["zoe"])
    with pytest.raises(SessionRefused, match="layers"):
        await connect(there, other, credentials=people["ada"])


def test_a_file_that_does_not_fit_stops_the_start_and_says_where(own, folder, shared) -> None:
    path = folder / "tenants.toml"
    path.write_text(path.read_text().replace("64KiB", "64MiB"))
    said = subprocess.run(own.command("--tenants", str(path)), capture_output=True, text=True, timeout=30, check=False)
    assert said.returncode == 2
    assert "--tenants: " in said.stderr
    assert "dram_quota" in said.stderr
