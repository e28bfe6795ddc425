"""Simulator: replays request traces through the store's own index, placement and policies, on a virtual clock."""
