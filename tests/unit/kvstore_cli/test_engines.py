"""`why` and `warm` through an engine: a scripted one that answers as the bundled engine does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kvterrace.kvstore.cli import app
from typer.testing import CliRunner

pytestmark = pytest.mark.unit

WHY = {
    "model": "tiny",
    "prompt_tokens": 100,
    "tokens": {"hbm": 16, "dram": 48, "computed": 36},
    "miss": {"reason": "diverged", "token": 70, "tier": "", "gone_s": 0.0, "kept_s": 0.0, "fields": []},
    "break": {"token": 70, "before": "Today is ", "yours": "Monday, the 3rd", "cached": "Sunday, the 2nd"},
    "compute_s": 2.0,
    "load_s": 0.1,
    "store": "sidecar",
}
RECEIPT = {
    "request_id": "chatcmpl-1",
    "tokens": {"nvme": 64, "computed": 36},
    "saved_s": 1.25,
    "ttft_s": 0.5,
    "miss": None,
}


class Script:
    """What was asked, and how many more times it says that it is full."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []
        self.full = 0
        self.lock = threading.Lock()
        self.url = ""

    def answer(self, path: str, body: object) -> tuple[int, object]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny"}]}
        with self.lock:
            self.asked.append((path, body))
            if self.full:
                self.full -= 1
                return 429, {"error": {"message": "too many requests wait"}}
        if path == "/admin/why":
            return 200, WHY
        if path == "/admin/receipts/chatcmpl-1":
            return 200, RECEIPT
        if path in ("/v1/completions", "/v1/chat/completions") and isinstance(body, dict):
            if body.get("prompt") == "bad":
                return 400, {"error": {"message": "prompt: makes no sense"}}
            return 200, {"usage": {"prompt_tokens": 7, "kvterrace": {"tokens": {"dram": 4, "computed": 3, "nvme": 0}}}}
        return 404, {"error": {"message": f"no {path} here"}}


@pytest.fixture
def engine() -> Iterator[Script]:
    script = Script()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = script.answer(self.path, json.loads(data) if data else None)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield script
    server.shutdown()
    thread.join()
    server.server_close()


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    return result.exit_code, result.stdout, result.stderr


def test_why_shows_the_engines_text_on_both_sides_of_the_break(engine, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Today is Monday, the 3rd")
    code, out, err = run("why", "--prompt", file, "--engine", engine.url)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Of 100 prompt tokens, 16 would come from the engine's HBM, 48 would come from DRAM and 36 would be computed, "
        "if it were asked now.",
        "Computing what would be reused takes 2.00 s, loading them 0.10 s.",
        "A stored prompt is the same up to token 70, and differs there.",
        "What changes from request to request belongs behind what stays the same: `kvterrace lint`.",
        "before: Today is ",
        "yours:  [Monday, the 3r]d",
        "cached: [Sunday, the 2n]d",
    ]
    assert engine.asked == [("/admin/why", {"prompt": "Today is Monday, the 3rd"})]
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}], "tools": []}))
    assert json.loads(run("why", "--prompt", file, "--engine", engine.url, "--json")[1]) == WHY
    assert engine.asked[-1][1] == {"messages": [{"role": "user", "content": "x"}], "tools": []}


def test_why_takes_a_receipt_from_an_engine(engine):
    code, out, _ = run("why", "chatcmpl-1", "--engine", engine.url)
    assert (code, out.splitlines()[0]) == (0, "Of 100 prompt tokens, 64 came from NVMe and 36 were computed.")
    assert "saved about 1.25 s" in out
    code, _, err = run("why", "chatcmpl-2", "--engine", engine.url)
    assert (code, err.count("\n")) == (2, 1)
    assert "no /admin/receipts/chatcmpl-2 here" in err


def test_warm_prefills_each_prompt_through_an_engine_once(engine, tmp_path):
    lines = ["one", {"prompt": [1, 2, 3]}, {"messages": [{"role": "user", "content": "hi"}], "model": "m"}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = run("warm", file, "--engine", engine.url, "--json")
    assert code == 0
    assert json.loads(out) == {"prompts": 3, "failed": 0, "next": 3, "tokens": {"dram": 12, "computed": 9}, "error": ""}
    bodies = sorted(engine.asked, key=str)
    assert {path for path, _ in bodies} == {"/v1/completions", "/v1/chat/completions"}
    assert all(body["max_tokens"] == 1 for _, body in bodies)
    assert sorted(body["model"] for _, body in bodies) == ["m", "tiny", "tiny"]  # which it must say


def test_warm_asks_a_full_engine_again_and_goes_on_behind_a_bad_prompt(engine, tmp_path, monkeypatch):
    monkeypatch.setattr("kvterrace.kvstore.warmer.PAUSE_S", 0.01)
    engine.full = 3
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, ["one", "bad", "three"])))
    code, out, err = run("warm", file, "--engine", engine.url, "--concurrency", 1)
    assert (code, out) == (2, "warmed 2 prompts; their tokens: 6 computed, 8 dram\n")
    assert "1 prompt failed, first: line 2:" in err
    assert "prompt: makes no sense; go on with --start 1" in err
    engine.asked.clear()
    assert run("warm", file, "--engine", engine.url, "--start", 2)[0] == 0
    assert [body["prompt"] for _, body in engine.asked] == ["three"]


def test_warm_stops_when_nobody_answers(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, ["one"] * 50)))
    code, _, err = run("warm", file, "--engine", "http://127.0.0.1:9")
    assert code == 1
    assert "no engine answers at http://127.0.0.1:9" in err
    assert "go on with --start 0" in err
