"""An OpenAI-compatible engine that computes by counting: its answer depends on every token of its prompt. Faults can be
switched on."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = 16


@dataclass
class Fake:
    """kind: "own" (kvterrace), "vllm" or "plain". fault: see _answer."""

    kind: str = "own"
    fault: str = ""
    logprobs: bool = True
    tokenizes: bool = True
    known: set[tuple[int, ...]] = field(default_factory=set)
    asked: list[dict] = field(default_factory=list)
    url: str = ""
    kept: bool = True

    def get(self, path: str) -> tuple[int, dict]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "fake"}]}
        if path == "/status.json" and self.kind == "own":
            connector = {"kind": "sidecar", "connected": True, "save_bytes_in_flight": 0}
            return 200, {"version": "0.1.0", "phase": "ready", "trouble": "", "connector": connector}
        return 404, {"error": {"message": "no such route"}}

    def post(self, path: str, body: dict) -> tuple[int, dict]:
        if path == "/tokenize" and self.tokenizes:
            return 200, {"tokens": [sum(map(ord, word)) for word in body["prompt"].split()]}
        if path != "/v1/completions":
            return 404, {"error": {"message": "no such route"}}
        self.asked.append(body)
        if "logprobs" in body and not self.logprobs:
            return 400, {"error": {"message": "logprobs is not supported"}}
        if "kvterrace" in body and self.kind != "own":
            return 400, {"error": {"message": "Unknown parameter: 'kvterrace'."}}
        if "cache_salt" in body and self.kind != "vllm":
            return 400, {"error": {"message": "Unknown parameter: 'cache_salt'."}}
        off = body.get("kvterrace", {}).get("cache") is False or "cache_salt" in body
        return 200, self._answer(body["prompt"], off)

    def _answer(self, prompt: list[int], off: bool) -> dict:
        heads = [tuple(prompt[: n * BLOCK]) for n in range(1, len(prompt) // BLOCK + 1)]
        hit = 0 if off else sum(head in self.known for head in heads) * BLOCK
        hit = min(hit, (len(prompt) - 1) // BLOCK * BLOCK)
        if not off and self.kept:
            self.known.update(heads)
        wrong = (self.fault == "wrong bytes" and hit > 0) or (self.fault == "tie" and hit > 0)
        said = hit + (5 if self.fault == "counts half blocks" and hit else 0)
        token = "other" if wrong else str(sum(prompt) % 1009)
        right, near = str(sum(prompt) % 1009), -0.05 if self.fault == "tie" else -4.0
        logprobs = {"tokens": [token], "top_logprobs": [{right: 0.0, "other": near}]}
        return {
            "choices": [{"text": token, "logprobs": logprobs if self.logprobs else None}],
            "usage": {
                "prompt_tokens": len(prompt),
                "prompt_tokens_details": {"cached_tokens": said},
                "kvterrace": {"tokens": {"hbm": said, "computed": len(prompt) - said}, "miss_reason": "never_seen"},
            },
        }


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(*fake.get(self.path))

        def do_POST(self) -> None:
            self._reply(*fake.post(self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def _reply(self, status: int, body: dict) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
