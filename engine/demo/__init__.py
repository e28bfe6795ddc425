"""`kvterrace demo`: one sidecar, two replicas, one prefix prefilled once and reused by both."""
