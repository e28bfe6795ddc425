"""Scores: how much of a prompt each node and each engine has, by tier. For routers; nothing is leased or touched.

This node answers from its own indexes. Other nodes are asked directly, at the same time and with one deadline, which is
exact; where there are more than MAX_ASKED of them, the directory says first whom to ask, and whoever does not answer is
given by what the directory knows of it, to within 15 blocks. Used on the store's loop.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..proto import kv_pb2 as pb
from ..radix import TOKEN_BYTES, block_keys
from .catalog import Catalog
from .depot import Depot
from .elsewhere import Holder
from .events.hbm import Hbm
from .events.sight import Sees, everything
from .residents import Residents

MAX_ASKED = 32
DEADLINE_S, MAX_DEADLINE_S = 0.1, 5.0
ASK_SHARE = 0.7  # of the deadline; the rest is the directory's, for those that did not answer
MAX_TOKENS_BYTES = 8 << 20
MAX_LABEL_CHARS = 256


class Holdings:
    """What a store knows of where prompts are: `spaces` is its live table of namespaces, `depot` the tier below, `hbm`
    the engines'."""

    def __init__(self, spaces: Mapping[bytes, Residents], depot: Depot, hbm: Hbm) -> None:
        self._spaces = spaces
        self._depot = depot
        self.hbm = hbm

    def known(self, fingerprint: bytes) -> "Known | None":
        """That namespace; None: nothing of it is here, and nobody has a session on it."""
        space: Residents | Catalog | None = self._spaces.get(fingerprint)
        if space is not None:
            return Known(fingerprint, space.block_tokens, space.namespace.hash_name)
        space = self._depot.of(fingerprint)
        return Known(fingerprint, space.block_tokens, space.hash_name) if space is not None else None

    def labelled(self, label: str) -> list[bytes]:
        """Fingerprints of the namespaces of that label."""
        return [space.fingerprint for space in self._spaces.values() if space.namespace.label == label]

    def label_of(self, fingerprint: bytes) -> str:
        """Of a namespace; "" = not known."""
        space = self._spaces.get(fingerprint)
        return space.namespace.label if space is not None else ""

    def tiers(self, fingerprint: bytes, tokens: bytes) -> dict[str, int]:
        """Tokens of the longest prefix that is here, by the nearest tier that has them."""
        space, catalog = self._spaces.get(fingerprint), self._depot.of(fingerprint)
        near = space.index.match(tokens).tokens if space is not None else 0
        deep = catalog.index.match(tokens).tokens if catalog is not None else 0
        found = {"dram": near, self._depot.name: max(deep - near, 0)}
        return {tier: count for tier, count in found.items() if count}


@dataclass(frozen=True, slots=True)
class Known:
    """A namespace."""

    fingerprint: bytes
    block_tokens: int
    hash_name: str

    def keys(self, tokens: bytes) -> list[bytes]:
        return block_keys(self.fingerprint, tokens, self.block_tokens, hash_name=self.hash_name)


class Others(Protocol):
    """The other nodes of the cluster."""

    def names(self) -> Sequence[str]:
        """Who is there, this node left out."""
        ...

    async def ask(self, node: str, request: pb.ScoreRequest, timeout_s: float) -> pb.NodeScore:
        """What that node has; ScoreError says why it did not say."""
        ...

    async def find(self, known: Known, tokens: bytes, timeout_s: float) -> Sequence[Holder]:
        """What the directory knows."""
        ...


class ScoreError(Exception):
    """Why a node did not say, in a word."""


class BadScore(ValueError):
    """The request makes no sense; begins with the field."""


class Scores:
    """Answers Score. node: this one's name. others: None while it is in no cluster."""

    def __init__(self, holdings: Holdings, node: str) -> None:
        self.holdings = holdings
        self.others: Others | None = None
        self.asked = 0
        self.unanswered = 0
        self._node = node

    async def score(self, request: pb.ScoreRequest, sees: Sees = everything) -> pb.ScoreReply:
        """BadScore for a request that makes no sense. By the deadline, whatever the others do. sees: which namespaces
        the caller may be told of; another is answered as one that nobody has."""
        self.asked += 1
        fingerprint = self._fingerprint(request, sees)
        deadline_s = request.deadline_s or DEADLINE_S
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            raise BadScore(f"deadline_s: must be above 0 and at most {MAX_DEADLINE_S:g}, not {request.deadline_s:g}")
        if len(request.tokens) % TOKEN_BYTES or len(request.tokens) > MAX_TOKENS_BYTES:
            raise BadScore(f"tokens: must be whole int32 tokens, at most {MAX_TOKENS_BYTES // TOKEN_BYTES} of them")
        if not sees(fingerprint):
            return pb.ScoreReply(nodes=[pb.NodeScore(node=self._node, exact=True)])
        here = self._here(fingerprint, request.tokens)
        known = self.holdings.known(fingerprint)
        size = known.block_tokens * TOKEN_BYTES if known is not None else 0
        full = len(request.tokens) // size * size // TOKEN_BYTES if size else 0
        if request.local or self.others is None:
            return pb.ScoreReply(nodes=[here], full_tokens=full)
        asked = pb.ScoreRequest(fingerprint=fingerprint, tokens=request.tokens, local=True)
        elsewhere = await self._elsewhere(self.others, asked, known, deadline_s)
        elsewhere.sort(key=lambda each: (-max(each.tokens, _hbm(each)), each.node))
        self.unanswered += sum(1 for each in elsewhere if each.error)
        return pb.ScoreReply(nodes=[here, *elsewhere], full_tokens=full)

    def _fingerprint(self, request: pb.ScoreRequest, sees: Sees) -> bytes:
        if len(request.fingerprint) == 32:
            return request.fingerprint
        if request.fingerprint:
            raise BadScore(f"fingerprint: must have 32 bytes, not {len(request.fingerprint)}")
        label = request.namespace[:MAX_LABEL_CHARS]
        found = [each for each in self.holdings.labelled(label) if sees(each)] if label else []
        if len(found) != 1:
            many = f"{len(found)} namespaces have" if found else "no namespace with a session here has"
            raise BadScore(f"namespace: {many} the label {label!r}; give the fingerprint")
        return found[0]

    def _here(self, fingerprint: bytes, tokens: bytes) -> pb.NodeScore:
        tiers = self.holdings.tiers(fingerprint, tokens)
        engines = [
            pb.EngineScore(engine=engine.name, session=engine.session, tokens=count)
            for engine, count in self.holdings.hbm.held(fingerprint, tokens)
        ]
        return pb.NodeScore(node=self._node, tokens=sum(tiers.values()), tiers=tiers, engines=engines, exact=True)

    async def _elsewhere(
        self, others: Others, request: pb.ScoreRequest, known: Known | None, deadline_s: float
    ) -> list[pb.NodeScore]:
        loop = asyncio.get_running_loop()
        end, names = loop.time() + deadline_s, list(others.names())
        found: dict[str, int] = {}
        if len(names) > MAX_ASKED:
            found = await self._directory(others, known, request.tokens, deadline_s * (1 - ASK_SHARE))
            names = [node for node in found if node in set(names)][:MAX_ASKED]
        asking = {node: others.ask(node, request, (end - loop.time()) * ASK_SHARE) for node in names}
        answers = await _together(asking)
        silent = [node for node, answer in answers.items() if isinstance(answer, str)]
        if silent and not found:
            found = await self._directory(others, known, request.tokens, end - loop.time())
        return [
            pb.NodeScore(node=node, tokens=found.get(node, 0), error=answer) if isinstance(answer, str) else answer
            for node, answer in answers.items()
        ]

    async def _directory(self, others: Others, known: Known | None, tokens: bytes, timeout_s: float) -> dict[str, int]:
        """Tokens by node, at least, most first."""
        if known is None or timeout_s <= 0:
            return {}
        return {each.node: each.blocks * known.block_tokens for each in await others.find(known, tokens, timeout_s)}


async def _together(asking: Mapping[str, Awaitable[pb.NodeScore]]) -> dict[str, pb.NodeScore | str]:
    """Each node's answer, or why there is none."""

    async def one(node: str, call: Awaitable[pb.NodeScore]) -> pb.NodeScore | str:
        try:
            answer = await call
        except ScoreError as error:
            return str(error) or "error"
        answer.node = node  # whatever it calls itself
        return answer

    answers = await asyncio.gather(*(one(node, call) for node, call in asking.items()))
    return dict(zip(asking, answers, strict=True))


def _hbm(score: pb.NodeScore) -> int:
    return max((each.tokens for each in score.engines), default=0)


def rows(reply: pb.ScoreReply) -> list[dict[str, object]]:
    """For JSON."""
    return [_row(each) for each in reply.nodes]


def _row(score: pb.NodeScore) -> dict[str, object]:
    return {
        "node": score.node,
        "tokens": score.tokens,
        "tiers": dict(score.tiers),
        "engines": [{"engine": each.engine, "session": each.session, "tokens": each.tokens} for each in score.engines],
        "exact": score.exact,
        "error": score.error,
    }


def as_json(reply: pb.ScoreReply) -> dict[str, object]:
    return {"full_tokens": reply.full_tokens, "nodes": rows(reply)}
