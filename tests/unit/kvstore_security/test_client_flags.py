"""The program's commands show who calls: by flag or environment, against a real server."""

import asyncio

import pytest
from kvterrace.kvstore.cli import app
from kvterrace.kvstore.service.channel import open_channel
from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.proto import BlockLayout, Namespace
from typer.testing import CliRunner

pytestmark = pytest.mark.unit


async def kvterrace(*arguments: str, **variables: str):
    """The program on a thread of its own, with a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, arguments, env=variables)


async def test_a_command_shows_a_token_by_flag_or_environment_and_the_unix_socket_needs_none(
    open_door, tools, identities, token
) -> None:
    door = await open_door(identities=identities(tools.row("oli", "operator"), tools.row("ann", "reader")))
    oli, ann = str(token("oli")), str(token("ann"))
    assert "dropped 0 blocks" in (await kvterrace("clear", "--address", door.tcp, "--token-file", oli)).output
    shown = await kvterrace("clear", "--address", door.tcp, KVTERRACE_CLIENT_TOKEN_FILE=oli)
    assert "dropped 0 blocks" in shown.output
    assert "dropped 0 blocks" in (await kvterrace("clear", "--address", door.uds)).output
    refused = await kvterrace("clear", "--address", door.tcp, "--token-file", ann)
    assert (refused.exit_code, "may not make this call" in refused.output) == (2, True)
    stranger = await kvterrace("clear", "--address", door.tcp)
    assert (stranger.exit_code, "asks who calls" in stranger.output, "--token-file" in stranger.output) == (
        2,
        True,
        True,
    )


async def test_a_command_speaks_tls(open_door, tools, authority, other_authority) -> None:
    cert, key = authority.issue("server")
    door = await open_door(tls_cert=cert, tls_key=key, tls_ca=authority.file)
    own, own_key = authority.issue("oli")
    pair = ["--tls-cert", str(own), "--tls-key", str(own_key)]
    there = ["status", "--json", "--address", door.tcp]
    done = await kvterrace(*there, "--tls-ca", str(authority.file), *pair)
    assert (done.exit_code, "boot_id" in done.output) == (0, True)
    wrong = await kvterrace(*there, "--tls-ca", str(other_authority.file), *pair)
    assert (wrong.exit_code, "no TLS connection" in wrong.output) == (1, True)


async def test_a_file_that_cannot_be_used_is_named(tmp_path) -> None:
    missing = await kvterrace("status", "--token-file", str(tmp_path / "none"))
    assert (missing.exit_code, f"--token-file: {tmp_path / 'none'} cannot be read" in missing.output) == (2, True)
    half = await kvterrace("status", "--tls-key", str(tmp_path / "none"))
    assert (half.exit_code, "--tls-key needs --tls-cert" in half.output) == (2, True)


@pytest.mark.parametrize("by", ["tcp", "uds"])
async def test_an_engine_shows_its_token(open_door, tools, identities, token, by: str) -> None:
    door = await open_door(identities=identities(tools.row("eve", "engine"), tools.row("ann", "reader")))
    space = Namespace(b"weights of a model", BlockLayout(1, 1, 2, 4, 8, "float32"))
    for name, connected in (("eve", True), ("ann", False)):
        client = SidecarClient(getattr(door, by), space, credentials=tools.credentials(token=token(name)))
        await client.start()
        assert client.connected is connected
        await client.close()


async def test_a_token_that_was_renewed_is_shown_by_the_next_channel(
    open_door, tools, identities, token, monkeypatch
) -> None:
    monkeypatch.setattr("kvterrace.kvstore.security.files.LOOK_S", 0.0)
    door = await open_door(identities=identities(tools.row("ann", "reader"), tools.row("bob", "reader")))
    shown = tools.credentials(token=token("nobody"))
    before = shown.version
    token("nobody").write_text("secret-of-bob")
    assert shown.version > before
    async with open_channel(door.tcp, shown) as channel:
        await channel.unary_unary("/kvterrace.v1.KVStore/Status")(b"", timeout=5)


@pytest.mark.parametrize("told", ["/etc/hostname", "{folder}/../{folder.name}/{name}", "{name}", "/dev/zero", ""])
async def test_an_engine_opens_no_other_file_than_an_arena_because_a_server_says_so(
    open_door, tmp_path, monkeypatch, told: str
) -> None:
    door = await open_door()
    path = told.format(folder=tmp_path, name=next(tmp_path.glob("*.arena")).name)
    monkeypatch.setattr(door.servicer, "_arena_path", path)
    opened = []
    monkeypatch.setattr("kvterrace.kvstore.arena.os.open", lambda *args: opened.append(args))
    client = SidecarClient(door.uds, Namespace(b"weights of a model", BlockLayout(1, 1, 2, 4, 8, "float32")))
    await client.start()
    assert not client.connected
    assert not opened
    await client.close()
