"""Output ends where it should, and shows neither more nor less text than it should."""

import pytest
from kvterrace.engine.stop import TextStream

pytestmark = pytest.mark.unit


class Pieces:
    """Token i is the i-th piece; `tail` comes only at the end."""

    def __init__(self, pieces, tail=""):
        self.pieces, self.tail = pieces, tail

    def push(self, token_id):
        return self.pieces[token_id]

    def flush(self):
        return self.tail


def shown(pieces, stops, tail=""):
    """What each token released, and what the end did; ends at a stop."""
    stream = TextStream(Pieces(pieces, tail), stops)
    parts = []
    for i in range(len(pieces)):
        parts.append(stream.push([i]))
        if stream.stopped:
            break
    return [*parts, stream.flush()]


@pytest.mark.parametrize(
    ("pieces", "stops", "expected"),
    [
        (["one", " two"], (), ["one", " two", ""]),
        (["one END two"], ("END",), ["one ", ""]),
        (["one E", "N", "D two"], ("END",), ["one ", "", "", ""]),
        (["one E", "N", "G"], ("END",), ["one ", "", "ENG", ""]),
        (["a\n", "\nb"], ("\n\n",), ["a", "", ""]),
        (["x EN"], ("END",), ["x ", "EN"]),  # the output ends: what was held back is shown
        (["ababab", "c"], ("abac", "bc"), ["abab", "a", ""]),
        (["first STOP2 STOP1"], ("STOP1", "STOP2"), ["first ", ""]),
        (["aab"], ("ab",), ["a", ""]),
        (["a", "a", "b"], ("ab",), ["", "a", "", ""]),
    ],
)
def test_stop_strings_are_found_across_tokens(pieces, stops, expected):
    assert shown(pieces, stops) == expected


def test_what_the_detokenizer_held_is_shown_at_the_end():
    assert shown(["a"], ("zz",), tail="\ufffd") == ["a", "\ufffd"]
    assert shown(["aE"], ("END",), tail="ND tail") == ["a", ""]


def test_stop_string_ends_the_sample(rig, prompt):
    tokens = prompt(1, 9)
    whole = rig().one(tokens, max_tokens=30).text[0]
    stop = whole[11:14]
    seen = rig().one(tokens, max_tokens=30, stop=(stop,))
    assert seen.text[0] == whole[: whole.index(stop)]
    assert seen.reasons == ["stop"]
    assert len(seen.tokens[0]) == whole.index(stop) + 3


def test_stop_token_ends_the_sample_and_is_not_shown(rig, prompt):
    tokens = prompt(1, 9)
    whole = rig().one(tokens, max_tokens=30)
    last = whole.tokens[0][7]
    at = whole.tokens[0].index(last)
    seen = rig().one(tokens, max_tokens=30, stop_token_ids=(last,))
    assert seen.reasons == ["stop"]
    assert seen.tokens[0] == whole.tokens[0][: at + 1]
    assert seen.text[0] == whole.text[0][:at]


def test_eos_ends_the_sample_unless_ignored(rig, prompt):
    for seed in range(60):
        tokens = prompt(seed, 5)
        ignored = rig().one(tokens, max_tokens=20, temperature=1.0, seed=seed)
        if 96 in ignored.tokens[0][:-1]:
            break
    else:
        pytest.fail("no prompt leads to the end token")
    seen = rig().one(tokens, max_tokens=20, temperature=1.0, seed=seed, ignore_eos=False)
    at = ignored.tokens[0].index(96)
    assert (seen.reasons, seen.tokens[0], len(seen.text[0])) == (["stop"], ignored.tokens[0][: at + 1], at)
    assert ignored.reasons == ["length"]


def test_text_held_back_comes_with_the_last_output(rig, prompt):
    tokens = prompt(1, 9)
    whole = rig().one(tokens, max_tokens=5).text[0]
    seen = rig().one(tokens, max_tokens=5, stop=(whole[4] + "never",))
    assert seen.text[0] == whole
    assert seen.last[0].text == whole[4]


def test_logprobs_come_with_each_token(rig, prompt):
    seen = rig().one(prompt(1, 9), max_tokens=4, logprobs=2)
    for output in seen.outputs:
        (entry,) = output.logprobs
        assert entry.token_id == output.token_ids[0] == entry.top[0][0]
        assert entry.logprob == entry.top[0][1] <= 0
