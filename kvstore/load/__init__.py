"""Load: asks an OpenAI-compatible endpoint as many users would, and measures what they would have seen."""
