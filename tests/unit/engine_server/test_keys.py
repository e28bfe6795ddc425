"""Who may call the engine: keys, roles, client certificates, TLS; and where it refuses to listen without them."""

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import logging
import socket
import ssl
import sys
from pathlib import Path

import httpx
import pytest
import typer
from kvterrace.connector.edge import ConfigError
from kvterrace.engine import cli
from kvterrace.engine.config import load_config
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.guard import Access, make_access
from kvterrace.engine.server.launch import LaunchError
from kvterrace.engine.server.run import ServerOptions, make_server, run
from kvterrace.kvstore.security import files
from typer.testing import CliRunner

pytestmark = pytest.mark.unit

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
USER, READER, OPERATOR = ({"authorization": f"Bearer sk-{name}"} for name in ("ann", "rex", "ops"))


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


certificates = _load("engine_certificates", Path(__file__).parents[2] / "certificates.py")


def row(name: str, role: str, *, certificate: str = "") -> str:
    """A table of the file; without `certificate`, one whose key is sk-NAME."""
    digest = hashlib.sha256(f"sk-{name}".encode()).hexdigest()
    proof = f'certificate = "{certificate}"' if certificate else f'token_sha256 = "{digest}"'
    return f'[[identity]]\nname = "{name}"\nroles = ["{role}"]\n{proof}\n'


ROWS = row("ann", "user"), row("rex", "reader"), row("ops", "operator"), row("box", "engine")


@pytest.fixture
def keys(tmp_path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text("\n".join(ROWS))
    return path


@pytest.fixture
def at_once(monkeypatch):
    """Files that changed are looked at without delay."""
    monkeypatch.setattr(files, "LOOK_S", 0)


def access(**options: object) -> Access:
    return make_access(load_config(model="m", **options))


def client_of(app, peer: str = "10.0.0.1") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(peer, 5)), base_url="http://t")


@pytest.fixture
async def guarded(backend, keys):
    async with client_of(make_app(backend, access(api_keys=keys))) as http:
        yield http


async def statuses(http: httpx.AsyncClient, headers: dict[str, str] | None = None) -> dict[str, int]:
    """What each kind of route answers."""
    answers = {path: await http.get(path, headers=headers) for path in GETS}
    answers["chat"] = await http.post("/v1/chat/completions", json=CHAT, headers=headers)
    answers["clear"] = await http.post("/admin/hbm/clear", headers=headers)
    return {path: answer.status_code for path, answer in answers.items()}


GETS = ("/health", "/ready", "/v1/models", "/v1/models/fake", "/metrics", "/status.json", "/nothing")
OPEN = {"/health": 200, "/ready": 200}
MODELS = {"/v1/models": 200, "/v1/models/fake": 200}


@pytest.mark.parametrize(
    ("key", "let_in"),
    [
        ("sk-ann", {**MODELS, "chat": 200}),
        ("sk-rex", {**MODELS, "/metrics": 200, "/status.json": 200}),
        ("sk-ops", {**MODELS, "/metrics": 200, "/status.json": 200, "clear": 200, "/nothing": 404}),
        ("sk-box", {}),
    ],
)
async def test_each_role_has_its_routes(guarded, engine, key, let_in):
    found = await statuses(guarded, {"authorization": f"Bearer {key}"})
    assert found == dict.fromkeys(found, 403) | OPEN | let_in
    assert bool(engine.requests) == ("chat" in let_in)


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer sk-eve"}, {"authorization": "Basic c2stYW5u"}, {"authorization": "Bearer "},
     {"authorization": "Bearer " + "x" * 10_000}, {"x-api-key": "sk-ann"}],
)  # fmt: skip
async def test_strangers_see_that_it_is_there_and_no_more(guarded, engine, headers):
    found = await statuses(guarded, headers)
    assert found == dict.fromkeys(found, 401) | OPEN
    assert engine.requests == []


async def test_a_refusal_has_openais_shape(guarded):
    missing = await guarded.post("/v1/chat/completions", json=CHAT)
    wrong = await guarded.post("/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer sk-secret-typo"})
    forbidden = await guarded.get("/metrics", headers=USER)
    codes = [each.json()["error"]["code"] for each in (missing, wrong, forbidden)]
    assert codes == ["missing_api_key", "invalid_api_key", "forbidden"]
    for each in (missing, wrong):
        assert each.headers["www-authenticate"] == "Bearer"
        assert each.json()["error"]["type"] == "invalid_request_error"
    assert "typo" not in wrong.text


async def test_a_stream_needs_a_key_like_any_other_answer(guarded, read_events):
    body = {**CHAT, "stream": True}
    assert (await guarded.post("/v1/chat/completions", json=body)).status_code == 401
    answer = await guarded.post("/v1/chat/completions", json=body, headers=USER)
    text = "".join(each["choices"][0]["delta"].get("content", "") for each in read_events(answer.text))
    assert text == "Hi0"


async def test_a_strangers_body_is_not_read(backend, keys):
    async def receive():
        raise AssertionError("the body was read")

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"",
             "query_string": b"", "headers": [], "client": ("10.0.0.1", 1), "server": ("t", 80), "scheme": "http",
             "root_path": "", "asgi": {"version": "3.0"}}  # fmt: skip
    await make_app(backend, access(api_keys=keys))(scope, receive, send)
    assert sent[0]["status"] == 401


async def test_ready_tells_its_detail_to_who_may_watch(guarded):
    assert (await guarded.get("/ready")).json() == {"status": "ready"}
    assert (await guarded.get("/ready", headers=USER)).json() == {"status": "ready"}
    assert "connector" in (await guarded.get("/ready", headers=READER)).json()


async def test_refusals_are_counted(guarded):
    await guarded.get("/metrics")
    text = (await guarded.get("/metrics", headers=READER)).text
    assert 'kvterrace_engine_http_responses_total{route="other",status="401"} 1.0' in text


async def test_clearing_is_audited_and_not_for_web_pages(guarded, caplog):
    with caplog.at_level(logging.INFO, "kvterrace.audit"):
        page = await guarded.post("/admin/hbm/clear", headers={**OPERATOR, "origin": "http://evil.example"})
        assert page.status_code == 403
        assert (await guarded.post("/admin/hbm/clear", headers=OPERATOR)).json() == {"dropped_blocks": 7}
        assert (await guarded.post("/admin/hbm/clear", headers=USER)).status_code == 403
        assert (await guarded.post("/admin/hbm/clear")).status_code == 401
    records = [json.loads(each.message) for each in caplog.records if each.name == "kvterrace.audit"]
    assert [(each["identity"], each["outcome"]) for each in records] == [("ops", "403"), ("ops", "200"), ("ann", "403")]
    assert {(each["call"], each["peer"]) for each in records} == {("POST /admin/hbm/clear", "10.0.0.1")}


async def test_without_keys_clearing_is_audited_and_other_hosts_refusals_are_not(app, caplog):
    with caplog.at_level(logging.INFO, "kvterrace.audit"):
        for peer in ("127.0.0.1", "10.0.0.1"):
            async with client_of(app, peer) as http:
                await http.post("/admin/hbm/clear")
    (record,) = [json.loads(each.message) for each in caplog.records if each.name == "kvterrace.audit"]
    assert (record["identity"], record["peer"], record["outcome"]) == ("", "127.0.0.1", "200")


async def test_a_path_cannot_write_lines_into_the_log(guarded, caplog):
    await guarded.get("/nothing%0Arefused%20nobody")
    (line,) = [each.message for each in caplog.records if "no_credentials" in each.message]
    assert "\n" not in line


async def test_keys_count_from_when_the_file_says_so(at_once, guarded, keys):
    assert (await guarded.get("/v1/models", headers=USER)).status_code == 200
    keys.write_text(row("bob", "user"))
    assert (await guarded.get("/v1/models", headers=USER)).status_code == 401
    assert (await guarded.get("/v1/models", headers={"authorization": "Bearer sk-bob"})).status_code == 200
    keys.write_text("[[identity]]\nname = 'half")
    assert (await guarded.get("/v1/models", headers={"authorization": "Bearer sk-bob"})).status_code == 200


async def test_without_keys_any_key_is_passed_over(http):
    answer = await http.post("/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer EMPTY"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "has no [[identity]] table"),
        ("sk-ann", 0o600, "is not TOML"),
        (row("ann", "user").replace("token_sha256", "token"), 0o600, "unknown key 'token'"),
        (row("ann", "admin"), 0o600, "'admin' is not a valid Role"),
        (row("ann", "user") + row("eve", "user").replace("eve", "ann"), 0o600, "name 'ann' is given twice"),
        (row("ann", "user"), 0o606, "everybody may write"),
        (row("ann", "user", certificate="ann"), 0o600, "ann has only a certificate, and without --tls-ca"),
    ],
)
def test_a_mistake_in_the_file_is_named(keys, text, mode, words):
    keys.write_text(text)
    keys.chmod(mode)
    with pytest.raises(ConfigError) as trouble:
        access(api_keys=keys)
    assert str(trouble.value).startswith("--api-keys: ")
    assert words in str(trouble.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tls_cert": "a.crt"}, "tls_cert and tls_key are given together"),
        ({"tls_ca": "ca.pem"}, "tls_ca needs tls_cert and tls_key"),
    ],
)
def test_half_a_certificate_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        load_config(model="m", **options)


def test_the_flags_of_the_command_line_arrive(monkeypatch):
    app, given = typer.Typer(), {}
    cli.register(app)
    monkeypatch.setattr(cli, "_run", lambda settings, *_, **__: given.update(settings))
    names = ("api-keys", "tls-cert", "tls-key", "tls-ca")
    flags = [word for name in names for word in (f"--{name}", f"/{name}")]
    told = ["--slo-ttft", "0.5", "--slo-itl", "0.05", "--receipts", "9"]
    done = CliRunner().invoke(app, ["engine", "m", *flags, "--insecure-listen", *told])
    assert done.exit_code == 0, done.output
    paths = {name.replace("-", "_"): Path(f"/{name}") for name in names}
    numbers = {"slo_ttft_s": 0.5, "slo_itl_s": 0.05, "receipts": 9}
    assert given == {"model": Path("m"), **paths, "insecure_listen": True, **numbers}


def start(host: str, **options: object) -> str:
    """What keeps an engine with a model that is none from starting."""
    config = load_config(model="/no/such/model.gguf", **options)
    with pytest.raises(LaunchError) as trouble:
        run(config, ServerOptions(host, 0, "m", 0, announce=print))
    assert len(str(trouble.value).splitlines()) == 1
    return str(trouble.value)


def test_off_loopback_it_listens_only_when_it_can_know_who_calls(tmp_path, keys, caplog):
    authority = certificates.Authority(tmp_path)
    cert, key = authority.issue("server")
    tls = {"tls_cert": cert, "tls_key": key}
    for options in ({}, tls):
        said = start("0.0.0.0", **options)
        assert "--host: '0.0.0.0' can be reached from other hosts, and nothing here asks who they are" in said
        assert "--insecure-listen" in said
    assert "keys travel there in clear; give --tls-cert and --tls-key" in start("0.0.0.0", api_keys=keys)
    for options in ({**tls, "api_keys": keys}, {**tls, "tls_ca": authority.file}):
        assert "/no/such/model.gguf" in start("0.0.0.0", **options)
    assert "can be reached" not in caplog.text
    assert "/no/such/model.gguf" in start("0.0.0.0", insecure_listen=True)
    assert "can be reached from other hosts" in caplog.text
    assert "/no/such/model.gguf" in start("localhost")


def test_files_are_looked_at_before_the_model_is(tmp_path, keys):
    cert, key = certificates.Authority(tmp_path).issue("server")
    key.chmod(0o644)
    assert start("127.0.0.1", tls_cert=cert, tls_key=key).startswith("--tls-key: everybody may read ")
    assert start("127.0.0.1", api_keys=tmp_path / "none").startswith("--api-keys: ")


@contextlib.asynccontextmanager
async def serving(backend, **options: object):
    """The real server on loopback; gives its port."""
    server = make_server(backend, access(**options))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        task = asyncio.create_task(server.serve(sockets=[bound]))
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            await task


def trusting(authority, *pair: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    if pair:
        context.load_cert_chain(*pair)
    return context


async def test_over_tls_a_certificate_or_a_key_lets_in(tmp_path, backend, keys, read_events):
    authority, stranger = certificates.Authority(tmp_path), certificates.Authority(tmp_path, "other-ca")
    cert, key = authority.issue("server")
    keys.write_text("\n".join([*ROWS, row("cert-ann", "user", certificate="ann.acme")]))
    async with serving(backend, api_keys=keys, tls_cert=cert, tls_key=key, tls_ca=authority.file) as port:
        url = f"https://localhost:{port}"

        async def chat(context: ssl.SSLContext, headers: dict[str, str] | None = None) -> httpx.Response:
            async with httpx.AsyncClient(base_url=url, verify=context) as http:
                assert (await http.get("/health")).status_code == 200
                return await http.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers)

        assert (await chat(trusting(authority))).status_code == 401
        assert (await chat(trusting(authority), USER)).status_code == 200
        known = trusting(authority, *authority.issue("ann.acme"))
        answer = await chat(known)
        assert (answer.status_code, len(read_events(answer.text)) > 2) == (200, True)
        assert (await chat(known, {"authorization": "Bearer sk-eve"})).status_code == 401
        assert (await chat(trusting(authority, *authority.issue("eve")))).status_code == 401
        with pytest.raises(httpx.TransportError):
            await chat(trusting(authority, *stranger.issue("ann.acme", file="forged")))
        async with httpx.AsyncClient() as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"http://127.0.0.1:{port}/health")


async def test_certificates_alone_are_a_list_of_who_may_do_all(tmp_path, backend):
    authority = certificates.Authority(tmp_path)
    cert, key = authority.issue("server")
    async with serving(backend, tls_cert=cert, tls_key=key, tls_ca=authority.file) as port:
        url = f"https://localhost:{port}"
        dummy = {"authorization": "Bearer EMPTY"}  # OpenAI's clients always send one
        async with httpx.AsyncClient(base_url=url, verify=trusting(authority)) as http:
            found = await statuses(http, dummy)
            assert found == dict.fromkeys(found, 401) | OPEN
        known = trusting(authority, *authority.issue("anybody"))
        async with httpx.AsyncClient(base_url=url, verify=known) as http:
            found = await statuses(http, dummy)
            assert found == dict.fromkeys(found, 200) | {"/nothing": 404}
