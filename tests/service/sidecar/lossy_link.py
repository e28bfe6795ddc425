"""A cable in user space, for kernels without netem: carries frames between two TAP devices that it makes, and delays
or loses those that come from the first. Lines on its stdin say how from now on: "SECONDS SHARE_LOST".

Run inside of the network namespace where the devices shall be made: `python lossy_link.py FIRST SECOND SEED`.
"""

import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MAX_FRAME_BYTES = 65_536
MAX_WAITING = 4096  # frames; more are lost, as in a router


def tap(name: str) -> int:
    """A new TAP device."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def send(device: int, frame: bytes) -> None:
    """A device that is down, or full, loses the frame."""
    with contextlib.suppress(OSError):
        os.write(device, frame)


def carry(first: int, second: int, rng: random.Random) -> None:
    """Until stdin is closed."""
    delay_s, lost = 0.0, 0.0
    waiting: list[tuple[float, int, bytes]] = []
    numbers = itertools.count()
    while True:
        timeout = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        ready, _, _ = select.select([first, second, 0], [], [], timeout)
        if 0 in ready:
            words = os.read(0, 4096).decode().split()
            if not words:
                return
            delay_s, lost = float(words[-2]), float(words[-1])
        if second in ready:
            send(first, os.read(second, MAX_FRAME_BYTES))
        if first in ready:
            frame = os.read(first, MAX_FRAME_BYTES)
            if rng.random() >= lost and len(waiting) < MAX_WAITING:
                heapq.heappush(waiting, (time.monotonic() + delay_s, next(numbers), frame))
        while waiting and waiting[0][0] <= time.monotonic():
            send(second, heapq.heappop(waiting)[2])


if __name__ == "__main__":
    ends = tap(sys.argv[1]), tap(sys.argv[2])
    os.write(1, b"ready\n")
    carry(*ends, random.Random(sys.argv[3]))
