"""A receipt that an engine leaves over its session is found by the id that the engine's client saw."""

import pytest
from kvterrace.kvstore.service.admin import fetch_receipts
from kvterrace.kvstore.types import Miss, Receipt
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.service


async def test_a_receipt_is_found_by_the_id_of_its_call(served, connect, tools):
    client = await connect(served.address)
    miss = Miss("not_in_hbm", 16, "dram", 1.5, 2.5)
    mine = Receipt("cmpl-wire/0", {"hbm": 16, "computed": 4}, miss, 0.1, 0.2, None, 0.3, 0.25, tools.tokens(1, 9_000))
    await client.served(mine)
    await client.lookup(tools.tokens(1, 9_000))  # behind it on the same stream
    reply = await fetch_receipts(served.address, pb.ReceiptsRequest(request_id="cmpl-wire"), timeout_s=5)
    (kept,) = reply.receipts
    assert (kept.request_id, dict(kept.tokens)) == ("cmpl-wire/0", {"hbm": 16, "computed": 4})
    assert (kept.miss.reason, kept.miss.token) == ("not_in_hbm", 16)
    assert not kept.HasField("saved_s")
    assert kept.time_s > 1e9
    await client.close()
    assert await client.lookup(tools.tokens(1)) is None, "nobody is there to say"
