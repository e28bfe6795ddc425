"""When requests arrive, in seconds from the start: Poisson, so that they come as independent users do, whatever the
endpoint does meanwhile."""

import random
from collections.abc import Iterator

# A burst scenario: a quarter of each period at three times the mean, the rest at a third of it: 1/4*3 + 3/4*1/3 = 1.
BURST_PERIOD_S = 20.0
BURST_SHARE = 0.25
BURST_FACTOR = 3.0


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Without end, `rate` a second on average."""
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate)
        yield at_s


def bursts(rate: float, rng: random.Random) -> Iterator[float]:
    """Without end, `rate` a second on average over each period: it begins with a burst, and is quiet after it."""
    for number in poisson(1.0, rng):  # time stretched so that requests come one a second; each is put where that is
        period, rest = divmod(number, rate * BURST_PERIOD_S)
        in_burst = rate * BURST_FACTOR * BURST_SHARE * BURST_PERIOD_S
        if rest < in_burst:
            within_s = rest / (rate * BURST_FACTOR)
        else:
            within_s = BURST_SHARE * BURST_PERIOD_S + (rest - in_burst) / (rate / BURST_FACTOR)
        yield period * BURST_PERIOD_S + within_s
