"""Ask one replica one question over its OpenAI API, as a user's program would, and time it at the client."""

import json
import time
from dataclasses import dataclass

import httpx

from .processes import DemoError

REQUEST_TIMEOUT_S = 120.0
CLEAR_S = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed greedy completion. Times in seconds at the client."""

    text: str
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    tiers: dict[str, int]  # prompt tokens by tier, from the receipt
    miss_reason: str  # of the first full block that had to be computed; "" if none had to


class Replica:
    """An engine's HTTP API. Use as a context manager."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self.address = name, f"http://127.0.0.1:{port}"
        self._http = httpx.Client(base_url=self.address, timeout=REQUEST_TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def ready(self) -> bool:
        """Does `/ready` answer 200, with the connector attached?"""
        try:
            return self._http.get("/ready", timeout=2.0).status_code == 200
        except httpx.TransportError:
            return False

    def clear_hbm(self) -> None:
        """Drop the replica's own prefix cache, all of it; what the sidecar holds stays. Blocks that are still being
        saved are pinned, and go when that has ended."""
        end = time.monotonic() + CLEAR_S
        while time.monotonic() < end:
            self._http.post("/admin/hbm/clear").raise_for_status()
            engine = self._http.get("/status.json").json()["engine"]
            if not engine["pages_cached"] and not engine["pages_pinned"]:
                return
            time.sleep(0.02)
        raise DemoError(f"replica {self.name} still held blocks {CLEAR_S:.0f} s after they were cleared")

    def ask(self, document: str, question: str, max_tokens: int) -> Answer:
        body = {
            "model": self._http.get("/v1/models").json()["data"][0]["id"],
            "messages": [
                {"role": "system", "content": f"Answer questions about this document.\n\n{document}"},
                {"role": "user", "content": question},
            ],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self._stream(body)

    def _stream(self, body: dict[str, object]) -> Answer:
        parts: list[str] = []
        ttft_s = 0.0
        usage: dict[str, object] = {}
        began = time.perf_counter()
        with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[len("data: ") :])
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    if text := choice["delta"].get("content"):
                        ttft_s = ttft_s or time.perf_counter() - began
                        parts.append(text)
        return _answer("".join(parts), ttft_s, usage)


def _answer(text: str, ttft_s: float, usage: dict[str, object]) -> Answer:
    details, receipt = usage["prompt_tokens_details"], usage["kvterrace"]
    assert isinstance(details, dict)
    assert isinstance(receipt, dict)
    return Answer(
        text=text,
        ttft_s=ttft_s,
        prompt_tokens=int(str(usage["prompt_tokens"])),
        cached_tokens=int(details["cached_tokens"]),
        tiers=dict(receipt["tokens"]),
        miss_reason=receipt["miss_reason"],
    )
