"""The NVMe tier: a crash-safe log of segments on one or more paths."""
