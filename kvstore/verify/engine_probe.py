"""EngineProbe: one engine asked for greedy answers, with its cache or without, and what it says of both."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..engine_http import EngineError, EngineHttp
from .report import Skipped

MAX_TOKENS = 24
TIE_NATS = 0.1  # two tokens so near in log-probability may change places by rounding alone
_SAFE_IDS = (300, 20_000)  # of an engine that cannot be asked for ids: beyond bytes and specials, within any vocabulary
_PLACES = ("Lisbon", "Quito", "Nairobi", "Oslo", "Hanoi", "Lima", "Cairo", "Dublin", "Seoul", "Tunis")
_THINGS = ("lantern", "violin", "compass", "kettle", "ladder", "mirror", "basket", "hammer", "teapot", "anchor")


@dataclass(frozen=True, slots=True)
class Answer:
    """tokens: texts of the answer's, empty where the engine tells no log-probabilities; tops: the likeliest at each
    place, with theirs. cached_tokens: of the prompt, -1 = not told. tiers: of kvterrace's receipt."""

    text: str
    tokens: tuple[str, ...]
    tops: tuple[Mapping[str, float], ...]
    prompt_tokens: int
    cached_tokens: int
    tiers: Mapping[str, int]
    miss: str = ""

    @property
    def found_in(self) -> str:
        """For people."""
        tiers = ", ".join(f"{name} {count}" for name, count in self.tiers.items() if count)
        return tiers or (f"{self.cached_tokens} cached" if self.cached_tokens >= 0 else "not told")


class EngineProbe:
    """Asks `engine` about its first model, or `model`. clears: its HBM is emptied where forget() is called. EngineError
    when it does not answer."""

    def __init__(self, engine: EngineHttp, model: str = "", *, clears: bool = False) -> None:
        self.engine = engine
        self._clears = clears
        models = cast("list[dict[str, Any]]", engine.get("/v1/models").get("data") or [])
        names = [str(each.get("id")) for each in models]
        if not names or (model and model not in names):
            raise EngineError(f"{engine} serves {', '.join(names) or 'no model'}" + (f", not {model}" if model else ""))
        self.model = model or names[0]
        self.status = self._status()
        self.own = "connector" in self.status
        """It is kvterrace's."""
        self.version = str(self.status.get("version") or "unknown")
        self._logprobs = True

    def __str__(self) -> str:
        return str(self.engine)

    @property
    def connector(self) -> str:
        """ "sidecar", "embedded", "none"; "" = not told."""
        found = self.status.get("connector")
        return str(cast("dict[str, Any]", found).get("kind")) if isinstance(found, dict) else "none" if self.own else ""

    def ids(self, count: int, beginning: str = "") -> list[int]:
        """Token ids of a text that nobody has asked about: facts with random numbers. At least `count` of them, cut to
        so many."""
        text = beginning
        while True:
            text += facts(max(8, count // 8))
            found = self._tokenize(text)
            if found is None:
                low, high = _SAFE_IDS
                return [low + secrets.randbelow(high - low) for _ in range(count)]
            if len(found) >= count:
                return found[:count]

    def ask(self, prompt: Sequence[int] | str, *, cached: bool = True, keep_s: float = 120.0) -> Answer:
        """Greedy. cached False: computed wholly, nothing reused or saved; Skipped when this engine cannot do that.
        keep_s: for how long what it saves is worth keeping, where the engine is kvterrace's."""
        body: dict[str, object] = {
            "model": self.model,
            "prompt": list(prompt) if not isinstance(prompt, str) else prompt,
            "max_tokens": MAX_TOKENS,
            "temperature": 0.0,
        }
        if self.own:
            wish = {"retention": [{"start": 0, "priority": 0, "ttl_s": keep_s}]}
            body["kvterrace"] = wish if cached else {"cache": False}
        elif not cached:
            body["cache_salt"] = secrets.token_hex(16)  # vLLM's: shares with nobody
        answer = self._answered(body)
        if not cached and answer.cached_tokens != 0:
            raise Skipped(
                f"{self} cannot be asked to compute without its cache: it reused {answer.cached_tokens} tokens"
            )
        return answer

    def forget(self) -> None:
        """Have it drop what it has in its own memory, if that was asked for. Skipped where it cannot."""
        if not self._clears:
            return
        try:
            self.engine.post("/admin/hbm/clear", {})
        except EngineError as error:
            raise Skipped(f"--clear-hbm: {error}") from None

    def _answered(self, body: dict[str, object]) -> Answer:
        try:
            return _answer(self.engine.post("/v1/completions", {**body, "logprobs": 2} if self._logprobs else body))
        except EngineError as error:
            salted = "cache_salt" in body or "kvterrace" in body
            if error.status != 400 or not (self._logprobs or salted):
                raise
            words = str(error)
        if self._logprobs and "logprobs" in words:
            self._logprobs = False
            return self._answered(body)
        if "cache" in words or "kvterrace" in words:
            raise Skipped(f"this engine cannot be asked to compute without its cache: {words}")
        raise EngineError(words, 400)

    def _tokenize(self, text: str) -> list[int] | None:
        """None: it has no such call."""
        try:
            found = self.engine.post("/tokenize", {"model": self.model, "prompt": text})
        except EngineError as error:
            if error.status not in (400, 404, 405, 422):
                raise
            try:
                found = self.engine.post("/tokenize", {"prompt": text})
            except EngineError as again:
                if again.status not in (400, 404, 405, 422):
                    raise
                return None
        tokens = found.get("tokens")
        return [int(each) for each in cast("list[int]", tokens)] if isinstance(tokens, list) else None

    def _status(self) -> dict[str, Any]:
        try:
            return self.engine.get("/status.json")
        except EngineError:
            return {}


def facts(count: int) -> str:
    """Sentences with random numbers, in a form that a model goes on with surely, so that rounding changes no answer."""
    pick = secrets.choice
    return "".join(
        f"Box {secrets.randbelow(10_000):04d} in {pick(_PLACES)} holds a {pick(_THINGS)}. " for _ in range(count)
    )


def same(reference: Answer, answer: Answer) -> str:
    """ "" if the answers are equal; "tie" if they part where two tokens are as likely but for rounding; else where and
    how they part."""
    if reference.text == answer.text:
        return ""
    if not reference.tops or not answer.tops:
        return f"{reference.text!r:.120} and {answer.text!r:.120}"
    pairs = zip(reference.tokens, answer.tokens, strict=False)
    place = next((at for at, (one, other) in enumerate(pairs) if one != other), len(reference.tokens) - 1)
    one, other = reference.tokens[place : place + 1], answer.tokens[place : place + 1]
    gaps = [_gap(each.tops[place] if place < len(each.tops) else {}, one, other) for each in (reference, answer)]
    if all(gap <= TIE_NATS for gap in gaps):
        return "tie"
    return f"token {place}: {''.join(one)!r} and {''.join(other)!r}, {max(gaps):.2f} nats apart"


def _gap(top: Mapping[str, float], one: Sequence[str], other: Sequence[str]) -> float:
    """Between the log-probabilities of the two; infinite when one was not among the likeliest."""
    if not one or not other or one[0] not in top or other[0] not in top:
        return float("inf")
    return abs(top[one[0]] - top[other[0]])


def _answer(said: Mapping[str, Any]) -> Answer:
    """EngineError when it is not what OpenAI's API answers."""
    try:
        choice, usage = said["choices"][0], said["usage"]
        logprobs: dict[str, Any] = choice.get("logprobs") or {}
        receipt: dict[str, Any] = usage.get("kvterrace") or {}
        details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
        told = details.get("cached_tokens")
        return Answer(
            text=str(choice["text"]),
            tokens=tuple(logprobs.get("tokens") or ()),
            tops=tuple(logprobs.get("top_logprobs") or ()),
            prompt_tokens=int(usage["prompt_tokens"]),
            cached_tokens=int(told) if told is not None else -1,
            tiers=dict(receipt.get("tokens") or {}),
            miss=str(receipt.get("miss_reason") or ""),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(f"the answer is not a completion: {error!r}") from None
