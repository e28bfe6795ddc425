"""The program `kvterrace load` in a process of its own: what it prints, writes and exits with."""

import asyncio
import json
import os
import re
import signal
import sys

import pytest

pytestmark = [pytest.mark.service, pytest.mark.timeout(60)]

FLAGS = ["--rate", "40", "--requests", "6", "--alone", "2", "--prompt-tokens", "40", "--output-tokens", "3"]


async def start(*args, **env):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvterrace.kvstore", "load", *map(str, args),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONSAFEPATH": "1", "COLUMNS": "80", **env},
    )  # fmt: skip


async def finish(process):
    out, err = await asyncio.wait_for(process.communicate(), 50)
    return process.returncode, out.decode(), err.decode()


async def test_a_run_prints_tables_and_writes_both_reports(url, script, tmp_path):
    script.key = "sk-secret"
    files = [tmp_path / "run.json", tmp_path / "run.html"]
    flags = [*FLAGS, "--slo", "ttft=5,itl=1", "--min-goodput", "0.9", "--out", files[0], "--out", files[1]]
    code, out, err = await finish(await start(url, *flags, OPENAI_API_KEY="sk-secret"))
    assert code == 0, err
    assert max(len(line) for line in out.splitlines() if line[:1] in "┏┃┡│└") <= 80
    assert "TTFT from when due" in out
    assert "100.0% met ttft ≤ 5 s and itl ≤ 1 s" in out
    assert "Traceback" not in err
    report = json.loads(files[0].read_text())
    assert report["phases"]["load"]["requests"]["ok"] == 6
    assert report["phases"]["load"]["goodput"]["share"] == 1.0
    assert report["settings"]["slo"] == "ttft=5,itl=1"
    html = files[1].read_text()
    assert html.count("<svg") == html.count("role='img'") >= 6
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*['\"]?(?:https?:)?//", html)  # nothing from elsewhere
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(set(ids)) == len(ids)  # of several pictures on one page
    assert "prefers-color-scheme:dark" in html
    assert "sk-secret" not in out + err + html + files[0].read_text()


async def test_ctrl_c_ends_with_the_report(url, script):
    process = await start(url, "--rate", "40", "--alone", "1", "--duration", "600", "--prompt-tokens", "40",
                          "--output-tokens", "2", "--json")  # fmt: skip
    while len(script.bodies) < 12:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, out, err = await finish(process)
    assert code == 0, err
    report = json.loads(out)
    assert report["stopped"] is True
    assert report["phases"]["load"]["requests"]["ok"] > 3


async def test_how_it_fails(url, script):
    script.refuse = lambda body: (429, {"error": {"message": "full"}}) if body["max_tokens"] > 1 else None
    runs = [
        (1, "no request ended well", [url, *FLAGS]),
        (1, "nobody answers at http://127.0.0.1:9/v1", ["http://127.0.0.1:9", *FLAGS]),
        (2, "--slo: 'ttft' is none of", [url, "--slo", "ttft"]),
    ]
    ends = await asyncio.gather(*[_end(args) for _, _, args in runs])
    for (code, says, _), (returned, err) in zip(runs, ends, strict=True):
        assert (returned, says in err) == (code, True), err
        assert "Traceback" not in err


async def _end(args):
    code, _, err = await finish(await start(*args))
    return code, err
