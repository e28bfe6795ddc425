"""What a store's traffic says: receipts, what a cache without limit would hit, what another size would, which prompts
break early, and how it all went over the last hours."""

from .insight import Insight
from .types import CurvePoint, Finding, SpaceInsight, Window

__all__ = ["CurvePoint", "Finding", "Insight", "SpaceInsight", "Window"]
