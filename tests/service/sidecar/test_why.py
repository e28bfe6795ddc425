"""Why a prompt missed, over the wire: the answer to an engine, its receipt, and the dry run of an operator."""

from dataclasses import replace
from pathlib import Path

import pytest
from kvterrace.kvstore.service.admin import CallRefused, fetch_explanation, fetch_prefixes, fetch_receipts
from kvterrace.kvstore.types import Miss, Origin, Receipt
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import pack_tokens, unpack_tokens

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.service

B = 16
WORDS = [f"w{each}" for each in range(200)]


@pytest.fixture
def tokenizer(folder: Path) -> Path:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, WORDS[0]))
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


async def test_an_engine_and_an_operator_are_told_where_and_why_a_prompt_breaks(
    own, connect, tools, tokenizer: Path, namespace
) -> None:
    served = own.start("--text", f"{namespace.label}={tokenizer}")
    one = await connect(served.address)
    cached = list(range(3 * B))
    assert await tools.save(one, pack_tokens(cached))
    asked = [*cached[: 2 * B + 5], 150, *cached[2 * B + 6 :], *range(60, 90)]
    got = await one.acquire(pack_tokens(asked), skip=0, deadline_s=1.0, origin=Origin("chatcmpl-1"))
    await one.release(got.lease)
    assert (got.miss.reason, got.miss.token) == ("diverged", 2 * B + 5)
    assert list(unpack_tokens(got.miss.cached)) == cached[2 * B + 5 :]
    assert (await one.lookup(pack_tokens(asked))).miss == got.miss

    said = await fetch_explanation(
        served.address, pb.ExplainRequest(namespace=namespace.label, tokens=pack_tokens(asked)), timeout_s=3.0
    )
    assert (dict(said.tokens), said.miss.token, said.label) == ({"dram": 2 * B}, 2 * B + 5, namespace.label)
    with pytest.raises(CallRefused, match="fingerprint: nothing of that namespace is here"):
        await fetch_explanation(served.address, pb.ExplainRequest(fingerprint=b"?" * 32, tokens=b""), timeout_s=3.0)

    await one.served(Receipt("chatcmpl-1", {"dram": 2 * B, "computed": len(asked) - 2 * B}, got.miss, ttft_s=0.5))

    async def kept() -> bool:
        return len((await fetch_receipts(served.address, pb.ReceiptsRequest(), timeout_s=3.0)).receipts) == 1

    await tools.until(kept, 5.0)
    (receipt,) = (await fetch_receipts(served.address, pb.ReceiptsRequest(reason="diverged"), timeout_s=3.0)).receipts
    assert (receipt.request_id, receipt.miss.token, receipt.label) == ("chatcmpl-1", 2 * B + 5, namespace.label)
    assert receipt.time_s > 1.7e9

    listed = await fetch_prefixes(served.address, pb.PrefixesRequest(tokens=3), timeout_s=3.0)
    assert [each.text for each in listed.prefixes] == ["w0 w1 w2"]

    two = await connect(served.address, replace(namespace, adapter_digest=b"another adapter"))
    got = await two.acquire(pack_tokens(cached), skip=0, deadline_s=1.0)
    assert got.miss == Miss("other_namespace", 0, fields=("adapter",))


def test_a_tokenizer_that_is_none_stops_the_start(own, folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(AssertionError, match=r"--text: .*tokenizer\.json is no tokenizer\.json"):
        own.start("--text", str(folder / "tokenizer.json"))
