"""KV events: which blocks a node has, told to whoever routes requests."""
