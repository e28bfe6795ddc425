"""Sizing: how many bytes a model's KV takes, and how many tokens and contexts fit into each tier. Arithmetic on what a
model's files say; no weights are loaded, nothing is measured."""
