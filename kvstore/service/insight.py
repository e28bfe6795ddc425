"""The calls that tell an operator what was reused and why the rest was not. Part of the Servicer."""

from dataclasses import replace
from itertools import islice

import grpc
import grpc.aio

from ...proto import kv_pb2 as pb
from ..events.sight import Sees, Sight, everything
from ..insight import Insight
from ..keyed import MIN_KEY_BYTES
from ..prefixes import DEFAULT_LIMIT, Listing
from ..security.edge import identity_of
from ..store import Store
from ..text import Texts
from ..why import told
from .frames import FrameError, check_tokens
from .handover import HandoverCalls
from .insight_frames import pack_explanation, pack_insight, pack_listing, pack_receipt

MAX_PREFIXES = 1000
MAX_RECEIPTS = 10_000  # in one answer
SORTS = ("hits", "bytes", "age", "idle", "tokens")

ReceiptsContext = grpc.aio.ServicerContext[pb.ReceiptsRequest, pb.ReceiptsReply]
ExplainContext = grpc.aio.ServicerContext[pb.ExplainRequest, pb.ExplainReply]
PrefixesContext = grpc.aio.ServicerContext[pb.PrefixesRequest, pb.PrefixesReply]
InsightContext = grpc.aio.ServicerContext[pb.InsightRequest, pb.InsightReply]


class InsightCalls(HandoverCalls):
    """See the module. The methods without a context are for the dashboard, too."""

    def __init__(self, store: Store, texts: Texts) -> None:
        self._store = store
        self.texts = texts
        self.sight = Sight(store.tenancy.tenant_of)

    @property
    def insight(self) -> Insight:
        return self._store.insight

    async def Receipts(self, request: pb.ReceiptsRequest, context: ReceiptsContext) -> pb.ReceiptsReply:
        """The last requests'."""
        return self.receipts(request, self._sight(context))

    async def Explain(self, request: pb.ExplainRequest, context: ExplainContext) -> pb.ExplainReply:
        """A dry run of one prompt."""
        try:
            return self.explain(request, self._sight(context))
        except FrameError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def Prefixes(self, request: pb.PrefixesRequest, context: PrefixesContext) -> pb.PrefixesReply:
        """Which prefixes are stored."""
        try:
            return await self.prefixes(request, self._sight(context))
        except FrameError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def Insight(self, request: pb.InsightRequest, context: InsightContext) -> pb.InsightReply:
        """What the traffic says."""
        return self.insights(request, self._sight(context))

    def receipts(self, request: pb.ReceiptsRequest, sees: Sees = everything) -> pb.ReceiptsReply:
        """Newest first."""
        kept = self.insight.receipts
        known = kept.find(request.request_id, request.reason if sees is everything else "")
        if sees is not everything:  # what is not theirs to know must not decide what is found, either
            veiled = (replace(each, miss=told(each.miss)) for each in known if sees(each.fingerprint))
            known = (each for each in veiled if request.reason in ("", each.miss.reason if each.miss else ""))
        found = (pack_receipt(each) for each in known if request.fingerprint in (b"", each.fingerprint))
        limit = min(request.limit or MAX_RECEIPTS, MAX_RECEIPTS)
        return pb.ReceiptsReply(receipts=islice(found, limit), total=kept.total)

    def explain(self, request: pb.ExplainRequest, sees: Sees = everything) -> pb.ExplainReply:
        """FrameError for a namespace that is not here, or not for this caller to see."""
        tokens, space = check_tokens(request.tokens), request.fingerprint
        if request.namespace:
            named = [each for each in self._store.holdings.labelled(request.namespace) if sees(each)]
            if len(named) != 1:
                raise FrameError("namespace", f"{len(named)} namespaces are labelled {request.namespace!r}")
            space = named[0]
        operator = sees is everything
        found = self._store.explainer.explain(space, tokens, operator=operator) if sees(space) else None
        if found is None:
            raise FrameError("fingerprint", "nothing of that namespace is here, and no engine has a session on it")
        return pack_explanation(found)

    async def prefixes(self, request: pb.PrefixesRequest, sees: Sees = everything) -> pb.PrefixesReply:
        """FrameError for an order that does not exist."""
        if request.sort and request.sort not in SORTS:
            raise FrameError("sort", f"{request.sort!r} is none of {', '.join(SORTS)}")
        if 0 < len(request.key) < MIN_KEY_BYTES:
            raise FrameError("key", f"must have {MIN_KEY_BYTES} bytes at least, not {len(request.key)}")
        if request.no_runs:
            spaces = self._store.prefixes.within(request.fingerprint, request.tenant, sees)
            return pack_listing(Listing((), 0, False, spaces), self.texts)
        listing = await self._store.prefixes.list(
            fingerprint=request.fingerprint,
            tenant=request.tenant,
            key=request.key,
            children=request.children,
            sort=request.sort or SORTS[0],
            limit=min(request.limit or DEFAULT_LIMIT, MAX_PREFIXES),
            tokens=request.tokens,
            sees=sees,
        )
        return pack_listing(listing, self.texts)

    def insights(self, request: pb.InsightRequest, sees: Sees = everything) -> pb.InsightReply:
        """What this caller may see of it."""
        spaces = [each for each in self.insight.spaces(request.fingerprint) if sees(each.fingerprint)]
        findings = [each for each in self.insight.findings() if sees(each.fingerprint)]
        return pack_insight(spaces, findings, self.insight.skipped)

    def _sight(self, context: object) -> Sees:
        return self.sight(identity_of(context))
