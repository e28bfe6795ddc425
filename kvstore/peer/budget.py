"""Budget: bounds bytes in flight; who comes first goes first. Used from one event loop."""

import asyncio


class Budget:
    """limit_bytes: at once. What is larger than that goes alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[asyncio.Future[None], int] = {}  # turns and their sizes, in the order of asking
        self.taken_bytes = 0

    async def take(self, size_bytes: int, by: float) -> bool:
        """Wait for room, until the loop's time is `by`. True: give it back."""
        if not self._waiting and self._fits(size_bytes):
            self.taken_bytes += size_bytes
            return True
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = size_bytes
        try:
            await asyncio.wait({turn}, timeout=by - asyncio.get_running_loop().time())
        except asyncio.CancelledError:
            if turn.done():
                self.give(size_bytes)
            raise
        finally:
            self._waiting.pop(turn, None)
            self._pump()
        return turn.done()

    def give(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        self._pump()

    def _fits(self, size_bytes: int) -> bool:
        return not self.taken_bytes or self.taken_bytes + size_bytes <= self._limit_bytes

    def _pump(self) -> None:
        while self._waiting:
            turn, size_bytes = next(iter(self._waiting.items()))
            if not self._fits(size_bytes):
                return
            del self._waiting[turn]
            self.taken_bytes += size_bytes
            turn.set_result(None)
