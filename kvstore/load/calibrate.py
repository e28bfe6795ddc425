"""Calibrate: the first requests to an endpoint: whether it answers, whether it tells token counts, and how many tokens
a word of ours has there. They are in no figure."""

from dataclasses import dataclass

from ..errors import KvterraceError
from .endpoint import Endpoint, NobodyAnswers
from .exchange import Clock, exchange
from .outcome import Outcome, Status
from .talks import Prompt
from .words import Words

SHORT_WORDS, LONG_WORDS = 50, 250


@dataclass(frozen=True, slots=True)
class Calibration:
    """tokens_per_word: 1.0 when counts are not told. template_tokens: that the endpoint adds to a chat of one message,
    about."""

    tokens_per_word: float = 1.0
    template_tokens: int = 0
    told: bool = False


async def calibrate(endpoint: Endpoint, words: Words, *, clock: Clock, timeout_s: float) -> Calibration:
    """NobodyAnswers, or KvterraceError with what the endpoint said, when it does not answer a plain request."""
    short = await _try(endpoint, words, SHORT_WORDS, clock, timeout_s)
    if short.status is Status.ERROR and endpoint.asking.usage and "stream_options" in short.detail:
        endpoint.without_usage()
        short = await _try(endpoint, words, SHORT_WORDS, clock, timeout_s)
    _check(endpoint, short)
    long = await _try(endpoint, words, LONG_WORDS, clock, timeout_s)
    _check(endpoint, long)
    if short.usage is None or long.usage is None:
        return Calibration()
    more = long.usage.prompt_tokens - short.usage.prompt_tokens
    if more <= 0:
        return Calibration()  # counts that do not grow with the prompt are none
    per_word = more / (LONG_WORDS - SHORT_WORDS)
    return Calibration(per_word, max(0, round(short.usage.prompt_tokens - SHORT_WORDS * per_word)), told=True)


async def _try(endpoint: Endpoint, words: Words, count: int, clock: Clock, timeout_s: float) -> Outcome:
    prompt = Prompt("calibration", (("user", words.text(f"calibration {count}", count)),), 1)
    outcome = Outcome(prompt.kind, due_s=clock(), sent_s=clock())
    await exchange(endpoint, prompt, outcome, clock=clock, timeout_s=timeout_s)
    return outcome


def _check(endpoint: Endpoint, outcome: Outcome) -> None:
    if outcome.status is Status.OK:
        return
    text = f"a first request to {endpoint.url} failed: {outcome.detail}"
    mine = outcome.detail.startswith("HTTP 4") and outcome.status is Status.ERROR
    raise KvterraceError(text) if mine else NobodyAnswers(text)
