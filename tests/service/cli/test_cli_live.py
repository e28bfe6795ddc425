"""The program as a process against a sidecar as a process: what it clears stays away after a kill -9, and `top` gives
the terminal back."""

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvterrace.kvstore.cli import app
from typer.testing import CliRunner

pytestmark = pytest.mark.service

MODULE = [sys.executable, "-m", "kvterrace.kvstore"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KVTERRACE_", "_KVTERRACE"))}
    return {**kept, "PYTHONSAFEPATH": "1", **more}


async def kvterrace(*line: str) -> tuple[int, str]:
    """The program on a thread of its own: a process would take most of the time."""
    result = await asyncio.to_thread(CliRunner().invoke, app, line)
    return result.exit_code, result.stdout


async def test_what_is_cleared_by_its_listed_key_stays_away_after_a_kill(own, connect, tools, folder: Path):
    nvme = ("--nvme", f"{folder / 'nvme'}:1GiB", "--nvme-min-free", "1MiB")
    own.start(*nvme)
    client = await connect(own.address)
    head = tools.tokens(8)
    for tail in (1_000, 2_000):
        assert await tools.save(client, head + tools.tokens(4, tail))
    assert (await kvterrace("flush", "--address", own.address))[0] == 0
    _, out = await kvterrace("ls", "tiny", "--json", "--address", own.address)
    tails = [row for row in json.loads(out)["prefixes"] if row["first_block"]]
    assert [row["tier_blocks"] for row in tails] == [{"dram": 4, "nvme": 4}] * 2
    doomed, spared = tails[0]["key"], tails[1]["key"]
    code, out = await kvterrace("clear", "--prefix", doomed[:12], "--address", own.address)
    assert (code, out.startswith("dropped 4 blocks")) == (0, True)
    own.kill()
    own.start(*nvme)
    _, out = await kvterrace("ls", "--json", "--address", own.address)
    left = json.loads(out)["prefixes"]
    assert [(row["key"], row["blocks"]) for row in left] == [(spared, 12)]
    assert (await kvterrace("show", doomed[:12], "--address", own.address))[0] == 2


def test_top_draws_over_itself_until_q_and_gives_the_terminal_back(own):
    own.start()
    screen, terminal = pty.openpty()
    command = [*MODULE, "top", "--interval", "0.2", "--address", own.address]
    environ = environment(TERM="xterm", COLUMNS="120", LINES="40")
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
    os.close(terminal)
    drawn, pressed, deadline = b"", False, time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            drawn += os.read(screen, 65536)
        except OSError:  # the other end is closed
            break
        if not pressed and drawn.count(b"requests/s") >= 2:
            os.write(screen, b"q")
            pressed = True
    assert process.wait(10) == 0
    os.close(screen)
    assert b"dram" in drawn
    assert drawn.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in drawn  # cursor and screen are back
    assert b"Traceback" not in drawn


async def test_completion_knows_commands_and_their_options():
    async def completed(words: str) -> str:
        variables = {"_KVTERRACE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'kvterrace'; from kvterrace.kvstore.cli import main; main()",
            stdout=subprocess.PIPE,
            env=environment(**variables),
        )
        return (await process.communicate())[0].decode()

    assert set((await completed("kvterrace l")).split()) == {"ls", "lint", "load"}
    assert "--dry-run" in await completed("kvterrace clear --d")


async def test_help_imports_nothing_that_takes_long():
    heavy = ("torch", "fastapi", "nicegui", "grpc", "numpy", "pydantic")
    code = (
        "import sys\nfrom kvterrace.kvstore.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('loaded:', [each for each in {heavy!r} if each in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE, env=environment()
    )
    assert (await process.communicate())[0].decode().endswith("loaded: []\n")
