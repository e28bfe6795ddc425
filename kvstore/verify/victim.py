"""A process made to be killed: it holds a read lease and two reserved slots, says "holding", and waits.

It is told what on one line of its standard input, as JSON; it ends by itself when that is closed, or after HOLD_S.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from ...proto import Namespace
from ..security.credentials import CredentialFiles, Credentials
from ..sidecar import SidecarClient
from .scratch import LABEL, LAYOUT, random_tokens

HOLD_S = 60.0


async def hold(said: dict[str, Any]) -> str:
    """ "holding", and then HOLD_S of it; or why not."""
    files = [Path(path) if path else None for path in said["files"]]
    credentials = Credentials(CredentialFiles(*files)) if files else None
    # The label is nobody's: whoever started this finds the namespace by its own session's.
    namespace = Namespace(bytes.fromhex(said["weights_digest"]), LAYOUT, producer="kvterrace verify", label=LABEL)
    client = SidecarClient(said["address"], namespace, client=said["client"], credentials=credentials)
    await client.start()
    if not client.connected:
        return "no session"
    read = await client.acquire(bytes.fromhex(said["tokens"]), skip=0, deadline_s=2.0)
    write = await client.reserve(random_tokens(2), start=0, count=2)
    if not read.lease or not write.lease:
        return f"no leases: {read.reason} {write.reason}"
    print("holding", flush=True)  # noqa: T201  its starter reads it
    await asyncio.sleep(HOLD_S)
    return "not killed"


if __name__ == "__main__":
    print(asyncio.run(hold(json.loads(sys.stdin.readline()))), flush=True)  # noqa: T201
