"""Scores: what is here by tier and by engine, what others say in time, and what is said of those that do not."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from kvterrace.kvstore.commands.score import lines
from kvterrace.kvstore.elsewhere import Holder
from kvterrace.kvstore.events.sight import Sight
from kvterrace.kvstore.score_http import score_router
from kvterrace.kvstore.scores import MAX_ASKED, BadScore, ScoreError, Scores
from kvterrace.kvstore.security.identity import Identity, Role
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import unpack_tokens

pytestmark = pytest.mark.unit


class Others:
    """Other nodes: `answers` by name, an exception to raise, or seconds to be silent."""

    def __init__(self, answers, found=()) -> None:
        self.answers, self.found, self.asked, self.looked_up = answers, found, [], 0

    def names(self):
        return list(self.answers)

    async def ask(self, node, request, timeout_s):
        assert request.local
        self.asked.append(node)
        answer = self.answers[node]
        if isinstance(answer, float):
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.sleep(answer)
            except TimeoutError:
                raise ScoreError("deadline") from None
        if isinstance(answer, int):
            return pb.NodeScore(node="whatever", tokens=answer, exact=True)
        raise ScoreError(str(answer))

    async def find(self, known, tokens, timeout_s):
        self.looked_up += 1
        assert len(known.keys(tokens)) == len(tokens) // 16
        return self.found


@pytest.fixture
async def filled(events_bench, make_engine, prompt):
    """A store with 2 blocks of prompt 1 in DRAM and 6 on NVMe, and an engine with 3."""
    b = events_bench(8)
    engine = make_engine(b.lower.session)
    await b.lower.saved(prompt(1, 6))
    await b.lower.push_out(6)
    engine.compute(prompt(1, 3))
    return b


def request(bench, tokens: bytes, **fields) -> pb.ScoreRequest:
    return pb.ScoreRequest(fingerprint=bench.lower.session.fingerprint, tokens=tokens, **fields)


async def test_a_prefix_is_counted_once_by_its_nearest_tier_and_engines_apart(filled, prompt):
    reply = await Scores(filled.store.holdings, "here").score(request(filled, prompt(1, 7) + bytes(4)))
    (node,) = reply.nodes
    assert (node.node, node.tokens, node.exact, reply.full_tokens) == ("here", 24, True, 28)
    assert dict(node.tiers) == {"dram": 8, "nvme": 16}
    assert [(each.engine, each.tokens) for each in node.engines] == [("test", 12)]


async def test_asking_leases_and_touches_nothing(filled, prompt):
    before = filled.store.stats()
    await Scores(filled.store.holdings, "here").score(request(filled, prompt(1, 6)))
    assert filled.store.stats() == before


async def test_another_namespace_has_nothing_and_says_no_more(filled, prompt):
    asked = pb.ScoreRequest(fingerprint=b"x" * 32, tokens=prompt(1, 6))
    reply = await Scores(filled.store.holdings, "here").score(asked)
    assert reply == pb.ScoreReply(nodes=[pb.NodeScore(node="here", exact=True)])


async def test_others_answer_for_themselves_and_silent_ones_by_the_directory(filled, prompt):
    scores = Scores(filled.store.holdings, "here")
    scores.others = Others({"a": 8, "b": "unreachable", "c": 30.0, "d": 40}, [Holder("b", 4), Holder("x", 9)])
    loop = asyncio.get_running_loop()
    began = loop.time()
    reply = await scores.score(request(filled, prompt(1, 7), deadline_s=0.2))
    assert loop.time() - began < 1.0
    assert [(each.node, each.tokens, each.exact, each.error) for each in reply.nodes[1:]] == [
        ("d", 40, True, ""),
        ("b", 16, False, "unreachable"),
        ("a", 8, True, ""),
        ("c", 0, False, "deadline"),
    ]
    assert scores.unanswered == 2


async def test_in_a_large_cluster_only_those_are_asked_whom_the_directory_knows(filled, prompt):
    scores = Scores(filled.store.holdings, "here")
    names = {f"n{number}": 4 for number in range(MAX_ASKED + 10)}
    others = scores.others = Others(names, [Holder("n3", 8), Holder("n1", 2), Holder("gone", 2)])
    reply = await scores.score(request(filled, prompt(1, 7)))
    assert others.asked == ["n3", "n1"]
    assert {each.node for each in reply.nodes} == {"here", "n3", "n1"}


async def test_local_asks_nobody(filled, prompt):
    scores = Scores(filled.store.holdings, "here")
    others = scores.others = Others({"a": 8})
    await scores.score(request(filled, prompt(1, 7), local=True))
    assert (others.asked, others.looked_up) == ([], 0)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"fingerprint": b"short"}, "fingerprint"),
        ({"namespace": "nobody's"}, "namespace"),
        ({}, "namespace"),
        ({"fingerprint": bytes(32), "tokens": b"123"}, "tokens"),
        ({"fingerprint": bytes(32), "deadline_s": 1e9}, "deadline_s"),
        ({"fingerprint": bytes(32), "deadline_s": float("nan")}, "deadline_s"),
    ],
)
async def test_a_request_that_makes_no_sense_names_its_field(filled, fields, field):
    with pytest.raises(BadScore, match=f"^{field}: "):
        await Scores(filled.store.holdings, "here").score(pb.ScoreRequest(**fields))


async def test_http_takes_a_label_or_a_fingerprint_and_refuses_the_rest(filled, prompt):
    app = FastAPI()
    app.include_router(score_router(Scores(filled.store.holdings, "here"), Sight(lambda _: "")))
    tokens = [int(each) for each in unpack_tokens(prompt(1, 7))]
    space = filled.lower.session.fingerprint.hex()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as client:
        answer = await client.post("/score", json={"namespace": space, "tokens": tokens})
        (node,) = answer.json()["nodes"]
        assert (node["tokens"], node["tiers"], answer.json()["full_tokens"]) == (24, {"dram": 8, "nvme": 16}, 28)
        assert node["engines"][0]["tokens"] == 12
        for body, said in (
            ({"namespace": space, "tokens": [2**31]}, "tokens.0"),
            ({"namespace": space, "tokens": tokens, "what": 1}, "what"),
            ({"namespace": "nobody's", "tokens": tokens}, "namespace"),
            ({"namespace": space, "tokens": tokens, "deadline_s": 99}, "deadline_s"),
        ):
            answer = await client.post("/score", json=body)
            assert answer.status_code == 400
            assert answer.json()["detail"].startswith(said)
        assert (await client.post("/score", content=b" " * (17 << 20))).status_code == 413


async def test_people_see_which_node_did_not_answer(filled, prompt):
    scores = Scores(filled.store.holdings, "here")
    scores.others = Others({"b": "unreachable"}, [Holder("b", 4)])
    said = lines(await scores.score(request(filled, prompt(1, 7))))
    assert said == [
        "here: 24 tokens: dram 8, nvme 16",
        f"  test (session {filled.lower.session.id}): hbm 12",
        "b: at least 16 tokens (unreachable)",
    ]


async def test_a_tenant_learns_nothing_of_another_tenants_blocks(filled, prompt):
    scores, ours = Scores(filled.store.holdings, "here"), filled.lower.session.fingerprint
    sight = Sight({ours: "acme"}.get)
    reader = frozenset({Role.READER})
    asked = request(filled, prompt(1, 6))
    for tenant, tokens in (("acme", 24), ("other", 0), ("", 24)):
        reply = await scores.score(asked, sight(Identity("reader", tenant, reader)))
        assert sum(each.tokens for each in reply.nodes) == tokens
    nobody = await scores.score(pb.ScoreRequest(fingerprint=b"x" * 32), sight(Identity("reader", "other", reader)))
    theirs = await scores.score(asked, sight(Identity("reader", "other", reader)))
    assert theirs == nobody
    label = pb.ScoreRequest(namespace=filled.lower.session.namespace.label, tokens=prompt(1, 6))
    with pytest.raises(BadScore, match="no namespace"):
        await scores.score(label, sight(Identity("reader", "other", reader)))
