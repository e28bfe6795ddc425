"""The bundled engine: paged KV, continuous batching, prefix cache. See loop.py for the front, core.py for a step."""
