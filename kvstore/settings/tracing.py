"""Options of tracing."""

from pydantic import BaseModel, Field


class TracingSettings(BaseModel):
    """See the fields' descriptions."""

    otlp: str | None = Field(
        default=None,
        description="Send OpenTelemetry spans of traced requests to this collector, such as http://127.0.0.1:4318, by "
        "OTLP over HTTP. Needs pip install 'kvterrace[otel]'.",
    )
