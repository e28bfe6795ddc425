"""The HTTP edge before browsers: signing in, other sites' pages, WebSockets, and what is there without NiceGUI."""

import hashlib
import importlib.util
from pathlib import Path

import pytest
from kvterrace.kvstore.dashboard import offer as offers
from kvterrace.kvstore.dashboard.offer import Offer
from kvterrace.kvstore.security.audit import AuditLog
from kvterrace.kvstore.security.guard import Guard
from kvterrace.kvstore.security.http import CALLER, RECOGNISE, HttpEdge
from kvterrace.kvstore.security.identities import known_callers
from kvterrace.kvstore.security.signins import LASTS_S, SignIns, cookie_of

pytestmark = pytest.mark.unit

PAGE = {"accept": "text/html,application/xhtml+xml"}


class Client:
    """What a browser at 127.0.0.1 sends, and what it gets."""

    def __init__(self, app) -> None:
        self._app = app
        self.server, self.scheme = ("127.0.0.1", 9100), "http"

    async def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> "Answer":
        return await self._send("http", method, path, {"host": "127.0.0.1:9100", **(headers or {})}, body)

    async def socket(self, headers: dict[str, str]) -> bool:
        """Whether the app was reached."""
        given = {"host": "127.0.0.1:9100", **headers}
        return (await self._send("websocket", "GET", "/_nicegui_ws/socket.io/", given, b"")).status == 200

    async def _send(self, kind: str, method: str, path: str, headers: dict[str, str], body: bytes) -> "Answer":
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        place = {"server": self.server, "client": ("127.0.0.1", 5), "scheme": self.scheme}
        scope = {"type": kind, "method": method, "path": path, "headers": pairs, **place}
        answer = Answer()

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive, answer.take)
        return answer


class Answer:
    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, {}, b""

    async def take(self, message) -> None:
        if message["type"] == "websocket.close":
            self.status = 403
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")


class App:
    """Behind the edge: remembers who came."""

    def __init__(self) -> None:
        self.scope: dict = {}

    async def __call__(self, scope, receive, send) -> None:
        self.scope = scope
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"inside"})


def identities(folder: Path, *rows: tuple[str, str]) -> Path:
    file = folder / "identities.toml"
    digest = {name: hashlib.sha256(f"secret-of-{name}".encode()).hexdigest() for name, _ in rows}
    file.write_text(
        "".join(
            f'[[identity]]\nname="{name}"\nroles=["{role}"]\ntoken_sha256="{digest[name]}"\n' for name, role in rows
        )
    )
    file.chmod(0o600)
    return file


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def guarded(app: App, tmp_path: Path) -> Client:
    known = known_callers(identities(tmp_path, ("ann", "operator"), ("eve", "engine")), None)
    return Client(HttpEdge(app, Guard(known, asks=True)))


@pytest.fixture
def unguarded(app: App) -> Client:
    return Client(HttpEdge(app, Guard()))


def guard_of(client: Client) -> Guard:
    return client._app._guard


async def sign_in(client: Client, name: str = "ann") -> str:
    """The cookie, as a browser sends it back."""
    answer = await client.ask("POST", "/login", body=f"token=secret-of-{name}".encode())
    return answer.headers.get("set-cookie", "").partition(";")[0]


async def test_a_browser_without_a_token_is_led_to_where_it_can_sign_in(guarded: Client, app: App) -> None:
    answer = await guarded.ask("GET", "/", PAGE)
    assert (answer.status, answer.headers["location"]) == (303, "/login")
    assert not guard_of(guarded).failures
    form = await guarded.ask("GET", "/login", PAGE)
    assert form.status == 200
    assert b'name="token"' in form.body
    assert "frame-ancestors 'none'" in form.headers["content-security-policy"]
    for path in ("/metrics", "/_nicegui/3/static/nicegui.js", "/status.json", "/nothing"):
        assert (await guarded.ask("GET", path)).status == 401
    assert not app.scope


async def test_the_cookie_stands_for_the_token_until_it_is_ended(guarded: Client, app: App) -> None:
    answer = await guarded.ask("POST", "/login", body=b"token=secret-of-ann")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    said = answer.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said
    assert "secret-of-ann" not in said
    cookie = said.partition(";")[0]
    assert cookie.startswith("kvterrace-9100=")
    assert (await guarded.ask("GET", "/", {"cookie": f"other=1; {cookie}"})).body == b"inside"
    assert app.scope[CALLER].name == "ann"
    assert app.scope[RECOGNISE]().name == "ann"
    assert await guarded.socket({"cookie": cookie, "origin": "http://127.0.0.1:9100"})
    out = await guarded.ask("POST", "/logout", {"cookie": cookie})
    assert (out.status, out.headers["location"]) == (303, "/login")
    assert (await guarded.ask("GET", "/", {"cookie": cookie})).status == 401
    assert not hasattr(app.scope[RECOGNISE](), "name")  # a page that is still open ends


async def test_under_tls_the_cookie_is_the_hosts_own_and_never_sent_in_clear(guarded: Client) -> None:
    guarded.scheme = "https"
    answer = await guarded.ask("POST", "/login", body=b"token=secret-of-ann")
    assert answer.headers["set-cookie"].startswith("__Host-kvterrace-9100=")
    assert answer.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"token=secret-of-nobody", b"Nobody here has that token"),
        (b"token=secret-of-eve", b"neither the role reader nor operator"),
        (b"token=", b"Nobody here has that token"),
        (b"token=a&token=b", b"Nobody here has that token"),
        (b"token=" + b"x" * 5000, b"Nobody here has that token"),
        (b"\xff\x00", b"Nobody here has that token"),
        (b"token=%3Cscript%3E", b"Nobody here has that token"),
    ],
)
async def test_what_is_no_token_of_an_operator_does_not_sign_in(guarded: Client, body: bytes, said: bytes) -> None:
    answer = await guarded.ask("POST", "/login", body=body)
    assert answer.status == 401
    assert said in answer.body
    assert b"<script>" not in answer.body
    assert "set-cookie" not in answer.headers


async def test_a_token_that_is_withdrawn_withdraws_its_sign_ins(app: App, tmp_path: Path) -> None:
    file = identities(tmp_path, ("ann", "operator"))
    known = known_callers(file, None)
    assert known is not None
    client = Client(HttpEdge(app, Guard(known, asks=True)))
    cookie = await sign_in(client)
    assert (await client.ask("GET", "/", {"cookie": cookie})).status == 200
    identities(tmp_path, ("bob", "operator"))
    known._due = 0.0  # rather than wait until the file is looked at again
    assert (await client.ask("GET", "/", {"cookie": cookie})).status == 401


async def test_a_request_of_another_sites_page_is_refused(guarded: Client, unguarded: Client, app: App) -> None:
    cookie = await sign_in(guarded)
    for origin in ("https://evil.example", "http://127.0.0.1:9101", "null", "http://localhost:9100"):
        assert not await guarded.socket({"cookie": cookie, "origin": origin})
        assert not await unguarded.socket({"origin": origin})
        assert (await guarded.ask("POST", "/logout", {"cookie": cookie, "origin": origin})).status == 403
        assert (await unguarded.ask("POST", "/score", {"origin": origin})).status == 403
    assert not app.scope
    assert (await guarded.ask("GET", "/", {"cookie": cookie})).status == 200


async def test_a_name_of_another_site_that_points_here_gets_nothing(unguarded: Client, app: App) -> None:
    for host in ("evil.example:9100", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example"):
        for path in ("/", "/status.json", "/metrics"):
            assert (await unguarded.ask("GET", path, {"host": host})).status == 403
        assert not await unguarded.socket({"host": host, "origin": f"http://{host}"})
    assert not app.scope
    for host in ("127.0.0.1:9100", "localhost:9100", "[::1]:9100", "kv.localhost"):
        assert (await unguarded.ask("GET", "/", {"host": host})).status == 200


async def test_programs_on_other_hosts_may_use_any_name_where_that_was_allowed(unguarded: Client) -> None:
    unguarded.server = ("10.0.0.7", 9100)  # --insecure-listen
    assert (await unguarded.ask("GET", "/metrics", {"host": "sidecar.kv.svc:9100"})).status == 200
    assert (await unguarded.ask("GET", "/", {"host": "sidecar.kv.svc:9100"})).status == 403
    assert (await unguarded.ask("GET", "/", {"host": "10.0.0.7:9100"})).status == 200


async def test_without_identities_there_is_nothing_to_sign_in_to(unguarded: Client) -> None:
    assert (await unguarded.ask("GET", "/login")).body == b"inside"


async def test_a_link_does_not_sign_out(guarded: Client) -> None:
    cookie = await sign_in(guarded)
    assert (await guarded.ask("GET", "/logout", {"cookie": cookie})).status == 405
    assert (await guarded.ask("GET", "/", {"cookie": cookie})).status == 200


def test_sign_ins_are_bounded_and_end_by_themselves() -> None:
    now = [0.0]
    kept = SignIns(most=3, clock=lambda: now[0])
    cookies = [kept.begin(f"Bearer {i}") for i in range(5)]
    assert len(kept) == 3
    assert [kept.authorization(each) for each in cookies] == [None, None, "Bearer 2", "Bearer 3", "Bearer 4"]
    now[0] = LASTS_S
    assert kept.authorization(cookies[4]) is None
    assert len(kept) == 2


@pytest.mark.parametrize(
    ("header", "value"),
    [("a=1; b=2", "2"), ("b=2", "2"), ("xb=2", ""), ("b=1; b=2", ""), ("", ""), ("b", ""), ("b=", "")],
)
def test_a_cookie_that_is_there_twice_is_none(header: str, value: str) -> None:
    assert cookie_of(header, "b") == value


def home(shop, **more) -> Offer:
    return Offer(shop.reader, shop.servicer, AuditLog(), node="n", **{"wanted": True, **more})


async def test_without_nicegui_the_page_says_what_to_install(shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers.importlib.util, "find_spec", lambda name: None)
    client = Client(home(shop))
    answer = await client.ask("GET", "/")
    assert answer.status == 501
    assert b"pip install 'kvterrace[dashboard]'" in answer.body
    assert (await client.ask("GET", "/nothing")).status == 404
    assert not await client.socket({})


async def test_an_operator_may_want_none(shop) -> None:
    answer = await Client(home(shop, wanted=False)).ask("GET", "/")
    assert answer.status == 501
    assert b"--no-dashboard" in answer.body


async def test_what_is_no_page_is_not_found_and_loads_nothing(shop) -> None:
    offer = home(shop)
    answer = await Client(offer).ask("GET", "/nothing")
    assert (answer.status, answer.body) == (404, b'{"detail":"Not Found"}')
    assert offer._app is None


def test_the_dashboard_costs_a_start_nothing() -> None:
    import subprocess
    import sys

    code = "import sys; from kvterrace.kvstore.dashboard import offer; sys.exit('nicegui' in sys.modules)"
    assert importlib.util.find_spec("nicegui") is not None
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
