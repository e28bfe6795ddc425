"""Receipts, misses, prefixes and insight as messages, and back."""

from collections.abc import Sequence

from ...proto import FieldError
from ...proto import kv_pb2 as pb
from ..explain import Explanation
from ..insight.types import Finding, SpaceInsight
from ..prefixes import Listing, PrefixInfo, SpaceInfo
from ..text import Texts
from ..types import Miss, Receipt

MAX_SECONDS = 1e9


def pack_miss(miss: Miss | None) -> pb.Miss | None:
    if miss is None:
        return None
    return pb.Miss(
        reason=miss.reason,
        token=miss.token,
        tier=miss.tier,
        gone_s=miss.gone_s,
        kept_s=miss.kept_s,
        fields=miss.fields,
        cached=miss.cached,
    )


def unpack_miss(frame: pb.Miss) -> Miss:
    return Miss(
        frame.reason, frame.token, frame.tier, frame.gone_s, frame.kept_s, tuple(frame.fields), bytes(frame.cached)
    )


def pack_receipt(receipt: Receipt) -> pb.Receipt:
    return pb.Receipt(
        request_id=receipt.request_id,
        time_s=receipt.time_s,
        tokens=dict(receipt.tokens),
        miss=pack_miss(receipt.miss),
        queue_wait_s=receipt.queue_wait_s,
        cache_wait_s=receipt.cache_wait_s,
        saved_s=receipt.saved_s,
        ttft_s=receipt.ttft_s,
        computed_s=receipt.computed_s,
        prompt=receipt.prompt,
        fingerprint=receipt.fingerprint,
        label=receipt.label,
        tenant=receipt.tenant,
        client=receipt.client,
    )


def unpack_receipt(frame: pb.Receipt) -> Receipt:
    """What a client says of it; FieldError for what cannot be."""
    times = ("queue_wait_s", "cache_wait_s", "ttft_s", "computed_s")
    for name in times:
        if not 0 <= getattr(frame, name) < MAX_SECONDS:
            raise FieldError(name, "must be between 0 and 1e9 seconds")
    for name in ("gone_s", "kept_s"):
        if not 0 <= getattr(frame.miss, name) < MAX_SECONDS:
            raise FieldError(f"miss.{name}", "must be between 0 and 1e9 seconds")
    if not -MAX_SECONDS < frame.saved_s < MAX_SECONDS:
        raise FieldError("saved_s", "must be between -1e9 and 1e9 seconds")
    return Receipt(
        request_id=frame.request_id,
        tokens=dict(frame.tokens),
        miss=unpack_miss(frame.miss) if frame.HasField("miss") else None,
        queue_wait_s=frame.queue_wait_s,
        cache_wait_s=frame.cache_wait_s,
        saved_s=frame.saved_s if frame.HasField("saved_s") else None,
        ttft_s=frame.ttft_s,
        computed_s=frame.computed_s,
        prompt=frame.prompt,
    )


def pack_explanation(found: Explanation) -> pb.ExplainReply:
    return pb.ExplainReply(
        tokens=dict(found.tokens),
        miss=pack_miss(found.miss),
        fingerprint=found.fingerprint,
        label=found.label,
        compute_s=found.compute_s,
        load_s=found.load_s,
    )


def pack_listing(listing: Listing, texts: Texts) -> pb.PrefixesReply:
    rows = [_prefix(each, texts) for each in listing.prefixes]
    spaces = [_prefix_space(each) for each in listing.spaces]
    return pb.PrefixesReply(prefixes=rows, total=listing.total, partial=listing.partial, spaces=spaces)


def _prefix_space(space: SpaceInfo) -> pb.PrefixSpace:
    return pb.PrefixSpace(
        fingerprint=space.fingerprint,
        label=space.label,
        tenant=space.tenant,
        block_tokens=space.block_tokens,
        sessions=space.sessions,
        tier_blocks=dict(space.tier_blocks),
        tier_bytes=dict(space.tier_bytes),
    )


def _prefix(info: PrefixInfo, texts: Texts) -> pb.PrefixStatus:
    kept = info.retention
    return pb.PrefixStatus(
        fingerprint=info.fingerprint,
        label=info.label,
        tenant=info.tenant,
        key=info.key,
        parent=info.parent,
        first_block=info.first_block,
        blocks=info.blocks,
        prefix_tokens=info.prefix_tokens,
        tier_blocks=dict(info.tier_blocks),
        tier_bytes=dict(info.tier_bytes),
        hits=info.hits,
        age_s=info.age_s,
        idle_s=info.idle_s,
        retention=pb.RetentionSpec(priority=kept.priority, ttl_s=kept.ttl_s, pinned=kept.pinned),
        pinned_blocks=info.pinned_blocks,
        leases=info.leases,
        children=info.children,
        below_blocks=info.below_blocks,
        tokens=info.tokens,
        text=texts.of(info.label, info.tokens),
    )


def pack_insight(spaces: Sequence[SpaceInsight], findings: Sequence[Finding], skipped: int = 0) -> pb.InsightReply:
    """skipped: prompts that were not looked at."""
    return pb.InsightReply(
        spaces=[_space(each) for each in spaces], findings=[_finding(each) for each in findings], skipped=skipped
    )


def _space(space: SpaceInsight) -> pb.SpaceInsight:
    return pb.SpaceInsight(
        fingerprint=space.fingerprint,
        label=space.label,
        tenant=space.tenant,
        windows=[
            pb.WindowRate(
                window_s=each.window_s,
                tokens=each.tokens,
                repeated_tokens=each.repeated_tokens,
                hit_tokens=each.hit_tokens,
            )
            for each in space.windows
        ],
        curve=[pb.WhatIfPoint(capacity_bytes=each.capacity_bytes, hit_share=each.hit_share) for each in space.curve],
        sampled_share=space.sampled_share,
        references=space.references,
        dram_bytes=space.dram_bytes,
        nvme_bytes=space.nvme_bytes,
    )


def _finding(finding: Finding) -> pb.Finding:
    return pb.Finding(
        fingerprint=finding.fingerprint,
        label=finding.label,
        tenant=finding.tenant,
        key=finding.key,
        token=finding.token,
        kind=finding.kind,
        prompts=finding.prompts,
        lost_tokens_per_day=finding.lost_tokens_per_day,
        ours=finding.ours,
        cached=finding.cached,
        ours_text=finding.ours_text,
        cached_text=finding.cached_text,
    )
