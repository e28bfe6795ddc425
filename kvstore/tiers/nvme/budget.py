"""Budget: how much may still be written to a device today (UTC). What it has on the disk is never less than what was
written, so that a restart, after a kill too, does not begin the day again. What nobody can put off (a footer, the dead
bits of a clear) is written in any case; a share of the day is kept for it."""

from collections.abc import Callable

from ....proto.record import DeviceState

DAY_S = 86_400
_STEPS = 64
_MIN_STEP_BYTES = 256 << 10  # each costs a write
_KEPT_SHARE = 1 / 32


class Budget:
    """daily_bytes: 0 = no limit. known: what the disk says. wall: seconds since 1970."""

    def __init__(self, daily_bytes: int, known: DeviceState | None, wall: Callable[[], float]) -> None:
        self._daily_bytes = daily_bytes
        self._step = max(_MIN_STEP_BYTES, daily_bytes // _STEPS)
        self._wall = wall
        self._day = self._today()
        same_day = known is not None and known.day == self._day
        self._written = known.written_bytes if known is not None and same_day else 0
        self._promised = self._written  # on the disk

    def left(self) -> int | None:
        """None = no limit."""
        self._turn()
        return max(0, self._daily_bytes - self._written) if self._daily_bytes else None

    def allows(self, size: int) -> bool:
        """Whether something that can be put off may be written."""
        left = self.left()
        return left is None or size + self._daily_bytes * _KEPT_SHARE <= left

    def charge(self, size: int) -> None:
        self._turn()
        self._written += size

    def due(self) -> DeviceState | None:
        """What must go to the disk now, if anything; it counts as being there."""
        if not self._daily_bytes or self._written <= self._promised:
            return None
        self._promised = self._written + self._step
        return DeviceState(self._day, self._promised)

    def final(self) -> DeviceState | None:
        """What to leave on the disk at the end."""
        return DeviceState(self._day, self._written) if self._daily_bytes else None

    def _turn(self) -> None:
        if self._today() > self._day:
            self._day = self._today()
            self._written = self._promised = 0

    def _today(self) -> int:
        return int(self._wall()) // DAY_S
