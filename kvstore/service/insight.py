"""The calls that tell an operator what was reused and why the rest was not. Part of the Servicer."""

import grpc
import grpc.aio

from ...proto import kv_pb2 as pb
from ..events.sight import Sees, Sight, everything
from ..insight import Insight
from ..prefixes import DEFAULT_LIMIT
from ..security.edge import identity_of
from ..store import Store
from ..text import Texts
from .frames import FrameError, check_tokens
from .handover import HandoverCalls
from .insight_frames import pack_explanation, pack_insight, pack_listing, pack_receipt

MAX_PREFIXES = 1000
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
        found = [
            pack_receipt(each)
            for each in kept
            if sees(each.fingerprint)
            and request.request_id in ("", each.request_id)
            and request.reason in ("", each.miss.reason if each.miss is not None else "")
            and request.fingerprint in (b"", each.fingerprint)
        ]
        return pb.ReceiptsReply(receipts=found[: request.limit or None], total=kept.total)

    def explain(self, request: pb.ExplainRequest, sees: Sees = everything) -> pb.ExplainReply:
        """FrameError for a namespace that is not here, or not for this caller to see."""
        tokens, space = check_tokens(request.tokens), request.fingerprint
        if request.namespace:
            named = [each for each in self._store.holdings.labelled(request.namespace) if sees(each)]
            if len(named) != 1:
                raise FrameError("namespace", f"{len(named)} namespaces are labelled {request.namespace!r}")
            space = named[0]
        found = self._store.explainer.explain(space, tokens) if sees(space) else None
        if found is None:
            raise FrameError("fingerprint", "nothing of that namespace is here, and no engine has a session on it")
        return pack_explanation(found)

    async def prefixes(self, request: pb.PrefixesRequest, sees: Sees = everything) -> pb.PrefixesReply:
        """FrameError for an order that does not exist."""
        if request.sort and request.sort not in SORTS:
            raise FrameError("sort", f"{request.sort!r} is none of {', '.join(SORTS)}")
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
        return pack_insight(spaces, findings)

    def _sight(self, context: object) -> Sees:
        return self.sight(identity_of(context))
