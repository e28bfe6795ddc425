"""Placement: what is worth keeping, where. Pure: facts and measured costs in, decisions out. No clock, no I/O."""
