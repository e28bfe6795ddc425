"""Prompts that break off early and run on the same again are found, named and weighed; others are left in peace."""

import random

import numpy as np
import pytest
from kvterrace.kvstore.ghosts import traces
from kvterrace.kvstore.insight.facts import Asked, SpaceFacts
from kvterrace.kvstore.insight.kinds import kind_of
from kvterrace.kvstore.insight.lint import MOST_GROUPS, Lint
from kvterrace.kvstore.insight.overlap import Tail
from kvterrace.radix import block_keys, pack_tokens

pytestmark = pytest.mark.unit

BLOCK = 16
FACTS = SpaceFacts(b"f" * 32, "tiny", "", BLOCK, 4096, "sha256")


def text_of(label: str, tokens: bytes) -> str:
    """One character a token, for prompts made by `ids`."""
    return "".join(map(chr, np.frombuffer(tokens, dtype="<i4").tolist()))


def ids(text: str) -> list[int]:
    return [ord(each) for each in text]


class Traffic:
    """A store that keeps every prompt, as far as finding goes."""

    def __init__(self, text=text_of) -> None:
        self.lint = Lint(text)
        self.now = 0.0
        self._known: set[int] = set()

    def ask(self, prompt: list[int] | str, *, reason: str | None = None, facts: SpaceFacts = FACTS) -> None:
        self.now += 1.0
        tokens = pack_tokens(ids(prompt) if isinstance(prompt, str) else prompt)
        names = traces(facts.seed, tokens, BLOCK * 4, 0, len(tokens) // (BLOCK * 4))
        found = next((at for at, name in enumerate(names) if name not in self._known), len(names))
        why = reason if reason is not None else "diverged" if found < len(names) else ""
        asked = Asked(facts, tokens, found, why, self.now)
        for _ in self.lint.look(asked, np.array(names, dtype=np.uint64)):
            pass
        self._known.update(names)

    def findings(self):
        return self.lint.findings(self.now)


HEAD = "You are a careful assistant of the Example company. "  # three blocks and a bit
BODY = "Answer in full sentences, cite the paragraph of the manual, and never guess what you do not know. " * 8


def clock(number: int) -> str:
    return f"Now: 2026-11-30 04:{number % 60:02}:{number * 7 % 60:02}. "


def test_a_timestamp_near_the_top_is_found_with_its_place_and_price():
    traffic = Traffic()
    for number in range(12):
        traffic.ask(HEAD + clock(number) + BODY + f"Question {number}?")
    (found,) = traffic.findings()
    assert found.kind == "timestamp"
    assert len(HEAD) <= found.token < len(HEAD) + len(clock(0))
    shared = pack_tokens(ids(HEAD + clock(0)))[: found.token // BLOCK * BLOCK * 4]
    assert found.key == block_keys(FACTS.fingerprint, shared, BLOCK)[-1]
    assert found.prompts >= 8
    per_prompt = found.lost_tokens_per_day / found.prompts / 86_400 * 900  # a quarter of an hour at least
    assert per_prompt == pytest.approx(len(BODY), rel=0.2)
    assert found.ours_text != found.cached_text
    assert "04:" in found.ours_text
    assert found.ours_text[:4] == found.cached_text[:4]


@pytest.mark.parametrize(
    ("kind", "piece"),
    [
        ("id", lambda rng: f"request {rng.getrandbits(128):032x} begins. "),
        ("id", lambda rng: f"user_{rng.getrandbits(40):x}7 asks. "),
        ("number", lambda rng: f"There are {rng.randint(1000, 9999)} entries. "),
        ("timestamp", lambda rng: f"epoch {1_796_000_000 + rng.randint(0, 999_999)} s. "),
        ("changed", lambda rng: f"Name: {rng.choice(['Ada', 'Grace', 'Alan', 'Edsger'])} {rng.choice('XYZVW')}. "),
    ],
)
def test_the_kind_is_told_from_the_text(kind, piece):
    traffic, rng = Traffic(), random.Random(4)
    for _ in range(15):
        traffic.ask(HEAD + piece(rng) + BODY)
    kinds = {each.kind: each for each in traffic.findings()}
    assert kind in kinds
    assert max(traffic.findings(), key=lambda each: each.prompts).kind == kind


def test_a_list_of_tools_in_another_order_is_reordered_even_without_text():
    traffic, rng = Traffic(text=lambda label, tokens: ""), random.Random(1)
    tools = [[1000 * tool + at for at in range(40)] for tool in range(1, 6)]
    for _ in range(20):
        rng.shuffle(tools)
        traffic.ask(list(range(64)) + [token for tool in tools for token in tool] + list(range(9000, 9200)))
    kinds = [each.kind for each in traffic.findings()]
    assert kinds[0] == "reordered"
    assert traffic.findings()[0].ours_text == ""


def test_without_text_the_kind_is_unknown():
    traffic = Traffic(text=lambda label, tokens: "")
    for number in range(6):
        traffic.ask(HEAD + clock(number) + BODY)
    assert {each.kind for each in traffic.findings()} == {"unknown"}


def test_conversations_that_grow_and_different_questions_are_left_alone():
    traffic, rng = Traffic(), random.Random(2)
    system = [rng.randrange(50_000) for _ in range(160)]
    for _ in range(10):
        talk = list(system)
        for _ in range(5):
            talk += [rng.randrange(50_000) for _ in range(rng.randint(30, 90))]
            traffic.ask(talk)
    assert traffic.findings() == []


@pytest.mark.parametrize("reason", ["evicted", "cleared", "deadline", "slower_to_load", "other_namespace", "quota"])
def test_what_was_lost_otherwise_is_no_break(reason):
    traffic = Traffic()
    for number in range(6):
        traffic.ask(HEAD + clock(number) + BODY, reason=reason)
    assert traffic.findings() == []


def test_the_same_prompt_that_was_not_saved_is_no_break():
    traffic = Traffic()
    traffic._known = set(traces(FACTS.seed, pack_tokens(ids(HEAD)), BLOCK * 4, 0, 3))
    for _ in range(6):
        kept = set(traffic._known)
        traffic.ask(HEAD + BODY)
        traffic._known = kept
    assert traffic.findings() == []


def test_what_breaks_behind_most_of_the_prompt_costs_little_and_a_short_rest_is_nothing():
    traffic = Traffic()
    for number in range(8):
        traffic.ask(HEAD + BODY + clock(number) + "Thanks.")
    assert traffic.findings() == []


def test_namespaces_are_kept_apart_and_the_dearest_comes_first():
    traffic, other = Traffic(), SpaceFacts(b"g" * 32, "other", "acme", BLOCK, 4096, "sha256")
    for number in range(12):
        traffic.ask(HEAD + clock(number) + BODY * 3)
        traffic.ask(HEAD + clock(number) + BODY, facts=other)
    first, *_ = traffic.findings()
    assert first.label == "tiny"
    assert {each.tenant for each in traffic.findings()} == {"", "acme"}
    traffic.lint.forget(b"f" * 32)
    assert {each.label for each in traffic.findings()} == {"other"}


def test_what_is_not_asked_any_more_costs_less_and_is_forgotten_after_a_day():
    traffic = Traffic()
    for number in range(8):
        traffic.ask(HEAD + clock(number) + BODY)
    fresh = traffic.findings()[0].lost_tokens_per_day
    traffic.now += 9_000.0
    assert traffic.findings()[0].lost_tokens_per_day < fresh / 5
    traffic.now += 86_400.0
    assert traffic.findings() == []


def test_memory_is_bounded_however_many_heads_there_are():
    traffic, rng = Traffic(), random.Random(3)
    for _ in range(MOST_GROUPS + 200):
        head = [rng.randrange(50_000) for _ in range(32)]
        traffic.ask(head)
        traffic.ask(head + [rng.randrange(50_000) for _ in range(32)])
    assert len(traffic.lint._groups) <= MOST_GROUPS


def test_a_tail_keeps_no_more_than_is_said():
    tail = Tail(pack_tokens(np.random.default_rng(0).integers(0, 50_000, 20_000)))
    kept = [each for each in vars(tail).values() if isinstance(each, np.ndarray)]
    assert sum(each.nbytes for each in kept) <= 8 << 10
    assert all(each.base is None for each in kept), "a view keeps all that it is a part of"


def test_a_flood_is_sampled_and_still_weighed_in_full():
    traffic = Traffic()
    for number in range(400):
        traffic.ask(HEAD + f"N{number:05} " + BODY)
        traffic.now -= 0.999  # a thousand a second
    losses = sum(each.lost_tokens_per_day for each in traffic.findings())
    assert losses == pytest.approx(400 * len(BODY) / 900 * 86_400, rel=0.4)


@pytest.mark.parametrize(
    ("ours", "theirs", "kind"),
    [
        ("at 12:30:07 UTC", "at 12:31:55 UTC", "timestamp"),
        ("on 3 March 2026", "on 4 April 2026", "timestamp"),
        ("on Monday, March 3", "on Friday, March 7", "timestamp"),
        ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "id 9d2504e0-4f89-11d3-9a0c-0305e82c3301", "id"),
        ("costs 17 euro", "costs 1,250 euro", "number"),
        ("the red fox", "the blue fox", "changed"),
        ("ends here", "ends here", "changed"),
    ],
)
def test_kinds_of_pairs(ours, theirs, kind):
    assert kind_of(ours, theirs, 3) == kind
