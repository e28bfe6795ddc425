"""`make sim-cluster`: simulate a cluster of a few nodes for many seeds; print those that fail, and how to replay them.

python tests/cluster_sim/run.py --seeds 1000 [--first N]
python tests/cluster_sim/run.py --seed N -v
"""

import argparse
import gc
import logging
import sys
import time
import types
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = "cluster_sim"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """The exit code: 0 when every invariant held for every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--trouble", type=float, help="seconds of requests and faults in each")
    parser.add_argument("-v", action="store_true", dest="verbose", help="print all that happens")
    options = parser.parse_args(argv)
    package = types.ModuleType(PACKAGE)  # not on sys.path: this folder's names belong to others too
    package.__path__ = [str(HERE)]
    sys.modules[PACKAGE] = package
    from cluster_sim.world import TROUBLE_S, run_seed  # pyright: ignore

    logging.disable(logging.NOTSET if options.verbose else logging.CRITICAL)
    gc.disable()  # what it finalises, and when, is not the seed's doing
    gc.freeze()
    first, count = (options.seed, 1) if options.seed is not None else (options.first, options.seeds)
    began, failed, requests, counts = time.monotonic(), [], 0, Counter()
    for seed in range(first, first + count):
        outcome = run_seed(seed, trace=say if options.verbose else None, trouble_s=options.trouble or TROUBLE_S)
        if not seed % 10:
            gc.collect()
        if not (seed - first + 1) % 100:
            say(f"{seed - first + 1} of {count}, {len(failed)} failed, {time.monotonic() - began:.0f} s")
        requests += outcome.requests
        counts.update(outcome.counts)
        if outcome.wrong:
            failed.append(seed)
            say(f"seed {seed} FAILED")
            for each in outcome.wrong[:10]:
                say(f"  {each}")
            say(f"  replay: python tests/cluster_sim/run.py --seed {seed} -v")
        elif options.verbose:
            say(f"seed {seed}: {outcome.requests} requests, digest {outcome.digest}")
    seconds = time.monotonic() - began
    faults = ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
    say(f"{count} seeds, {len(failed)} failed, {requests} requests, {seconds:.0f} s ({faults})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
