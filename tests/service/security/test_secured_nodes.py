"""Two nodes that believe only certificates of their CA: blocks go over TLS, operators need to be known."""

import hashlib
import json
import ssl
import stat
from pathlib import Path

import httpx
import pytest
from kvterrace.kvstore.security.credentials import CredentialFiles, Credentials
from kvterrace.kvstore.service.admin import CallRefused, clear_store
from kvterrace.kvstore.service.channel import Place

pytestmark = pytest.mark.service

BLOCKS = 40


@pytest.fixture
def start(folder: Path, serve_in, valkey, authority):
    """Call it with a name and flags: a node with a certificate of that name."""

    def node(name: str, *flags: str):
        cert, key = authority.issue(name)
        tls = ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-ca", str(authority.file)]
        cluster = ["--cluster", f"redis://127.0.0.1:{valkey.port}", "--node", name, "--listen", "127.0.0.1:0"]
        return serve_in(folder / name).start(*cluster, *tls, "--http", "127.0.0.1:0", *flags)

    return node


async def test_two_nodes_share_over_tls_and_ask_everybody_who_they_are(
    start, folder, connect, tools, authority, kvterrace
) -> None:
    who = folder / "identities.toml"
    digest = hashlib.sha256(b"of-oli").hexdigest()
    rows = [f'[[identity]]\nname = "{name}"\ncertificate = "{name}"\nroles = ["node"]' for name in ("a", "b")]
    rows.append(f'[[identity]]\nname = "oli"\nroles = ["operator"]\ntoken_sha256 = "{digest}"')
    rows.append('[[identity]]\nname = "eve"\ncertificate = "eve"\nroles = ["engine"]')
    who.write_text("\n".join(rows))
    log = folder / "audit"
    a = start("a", "--identities", str(who), "--audit-log", str(log))
    b = start("b", "--identities", str(who))
    cert, key = authority.issue("eve")
    eve = Credentials(CredentialFiles(ca=authority.file, cert=cert, key=key))
    one = await connect(a.announced("serving on 127"), credentials=eve)
    two = await connect(b.address)
    assert one.connected
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(one, prompt)
    assert (await tools.fetched(two, prompt)).tiers == {"peer": BLOCKS * 16}

    trust = ssl.create_default_context(cafile=str(authority.file))
    async with httpx.AsyncClient(base_url=b.announced("http on"), verify=trust) as client:
        bearer = {"authorization": "Bearer of-oli"}
        assert (await client.get("/health")).json() == {"status": "ok"}
        assert (await client.get("/ready")).json() == {"status": "ready"}, "strangers get no detail"
        assert "cluster" in (await client.get("/ready", headers=bearer)).json()
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"authorization": "Bearer of-eve"})).status_code == 401
        text = (await client.get("/metrics", headers=bearer)).text
    assert 'kvterrace_peer_fetches_total{outcome="ok",way="bulk"} 1.0' in text, "over the bulk channel, in TLS"
    assert 'kvterrace_security_refused_calls_total{reason="no_credentials"} 1.0' in text
    assert 'kvterrace_security_refused_calls_total{reason="bad_token"} 1.0' in text
    trust.load_cert_chain(cert, key)
    async with httpx.AsyncClient(base_url=b.announced("http on"), verify=trust) as client:
        assert (await client.get("/status.json")).status_code == 403, "an engine is no reader"

    token = folder / "token"
    token.touch(0o600)
    token.write_text("of-oli\n")
    there = ["--address", a.announced("serving on 127")]
    shown = ["--tls-ca", str(authority.file), "--tls-cert", str(cert), "--tls-key", str(key)]
    with pytest.raises(CallRefused, match="may not"):
        await clear_store(Place(a.announced("serving on 127"), eve), b"", timeout_s=5.0)
    cleared = kvterrace("clear", *there, *shown, KVTERRACE_CLIENT_TOKEN_FILE=str(token))
    assert cleared.stdout.startswith(f"dropped {BLOCKS} blocks ("), cleared.stderr
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["identity"], each["call"], each["outcome"], each.get("blocks")) for each in lines] == [
        ("eve", "Clear", "PERMISSION_DENIED", None),
        ("oli", "Clear", "OK", BLOCKS),
    ]
