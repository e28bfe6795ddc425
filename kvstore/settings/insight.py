"""Options of what a store tells about its traffic."""

from pydantic import BaseModel, Field


class InsightSettings(BaseModel):
    """See the fields' descriptions."""

    receipts: int = Field(
        default=4096, ge=1, le=1_000_000, description="Receipts of requests that are kept, about 1 KB each."
    )
    text: list[str] = Field(
        default_factory=list[str],
        description="Show prompts' text to operators, by this tokenizer.json: FILE, or LABEL=FILE for the namespaces "
        "of that label. May be repeated. Default: no text. Needs pip install 'kvterrace[text]'.",
    )
    gpu_price: float | None = Field(
        default=None, ge=0.0, description="Price of one engine's accelerators for an hour, for the savings shown."
    )
    currency: str = Field(default="USD", max_length=8, description="Of --gpu-price, as it is shown.")
