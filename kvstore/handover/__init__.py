"""Handing blocks over: a node that leaves gives its hottest to others, a node that starts takes theirs."""
