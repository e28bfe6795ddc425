"""Blocks between nodes: what this store fetches from others, and what it serves to them."""
