"""Verify: proofs against a running deployment that the cache gives back what went in. Each cleans up after itself."""
