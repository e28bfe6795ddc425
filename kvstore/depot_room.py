"""DepotRoom: makes room in the tier below DRAM before blocks are put there, in the policy's order.

Where tenants share the tier, what is beyond a tenant's quota is not put, one at its quota makes room among its own
blocks only, and otherwise tenants/share.py says whose turn it is. Used by the store's thread.
"""

from collections.abc import Mapping, Sequence

from ..proto.record import record_bytes
from ..radix import TOKEN_BYTES
from .catalog import Catalog
from .room import evict_coldest
from .stats import Counters
from .tenants.share import Share, evict_in_turn
from .tiers import Record, Tier


class DepotRoom:
    """catalogs: the depot's live table, by fingerprint. tenants: whether they share the tier. unreachable: keys of
    records that no lookup can reach, to be dropped first."""

    def __init__(self, tier: Tier, catalogs: Mapping[bytes, Catalog], counters: Counters, *, tenants: bool) -> None:
        self._tier = tier
        self._catalogs = catalogs
        self._counters = counters
        self._tenants = tenants
        self.unreachable: list[bytes] = []

    async def make(self, records: Sequence[Record]) -> list[bool]:
        """Evict until these fit; which of them may be put, False being beyond its tenant's quota. What may not leave
        is left: the tier then says no."""
        if self.unreachable:
            gone, self.unreachable = self.unreachable, []
            await self._tier.drop(gone)
        allowed = [True] * len(records)
        planned = 0
        for share, places in self._by_share(records).items():
            planned += await self._within_quota(share, records, places, allowed)
            await self._drop(self._evict_all(planned, share))
        return allowed

    def _by_share(self, records: Sequence[Record]) -> dict[Share | None, list[int]]:
        """Places of records by whose they are, in order."""
        if not self._tenants:
            return {None: list(range(len(records)))}
        groups: dict[Share | None, list[int]] = {}
        for place, record in enumerate(records):
            catalog = self._catalogs.get(record.fingerprint)
            groups.setdefault(catalog.share if catalog is not None else None, []).append(place)
        return groups

    async def _within_quota(
        self, share: Share | None, records: Sequence[Record], places: Sequence[int], allowed: list[bool]
    ) -> int:
        """Bytes of those of one tenant's records that fit its quota, for which its own blocks make room."""
        sizes = [_size(records[place]) for place in places]
        if share is None or share.quota is None:
            return sum(sizes)
        own = [each for each in self._catalogs.values() if each.share is share]
        wanted, keys = min(sum(sizes), share.quota), _Keys()
        while (excess := share.excess(wanted)) > 0:
            largest = max(each.unit_bytes for each in own)
            if not evict_coldest(own, -(-excess // largest), keys.evict):
                break
        await self._drop(keys.gone)
        left, fits = share.left, 0
        for place, size in zip(places, sizes, strict=True):
            left -= size
            allowed[place] = left >= 0
            fits += size if left >= 0 else 0
        return fits

    def _evict_all(self, size: int, asker: Share | None) -> list[bytes]:
        """Evict until `size` bytes more may be live, or nothing more may go; the keys."""
        usage, keys = self._tier.usage(), _Keys()
        excess = usage.live_bytes + size - usage.live_limit_bytes
        while excess > 0:
            holders = [each for each in self._catalogs.values() if len(each)]
            smallest = min((each.unit_bytes for each in holders), default=0)
            if not smallest:
                break
            count = -(-excess // smallest)
            if self._tenants:
                taken = evict_in_turn(holders, count, keys.evict, asker)
            else:
                taken = evict_coldest(holders, count, keys.evict)
            if not taken:
                break
            excess -= taken * smallest
        return keys.gone

    async def _drop(self, keys: list[bytes]) -> None:
        if keys:
            self._counters.tier_evictions[self._tier.name] += len(keys)
            await self._tier.drop(keys)


class _Keys:
    """Collects the keys of what is evicted."""

    def __init__(self) -> None:
        self.gone: list[bytes] = []

    def evict(self, catalog: Catalog, count: int) -> int:
        evicted = catalog.evict(count)
        self.gone += evicted
        return len(evicted)


def _size(record: Record) -> int:
    return record_bytes(record.block_bytes, len(record.tokens) // TOKEN_BYTES)
