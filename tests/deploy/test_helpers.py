"""The two programs that the images bring along: the probe, and the deletion cost of pods."""

import http.server
import importlib.util
import json
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytestmark = pytest.mark.service

ROOT = Path(__file__).resolve().parents[2]
PROBE, COST = ROOT / "deploy" / "probe.py", ROOT / "deploy" / "deletion_cost.py"
ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"


def load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CERTIFICATES = load(ROOT / "tests" / "certificates.py", "kvterrace_deploy_certificates")
DELETION_COST = load(COST, "kvterrace_deletion_cost")


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers by `answers`: path -> (status, body) or a function of the request."""

    def answer(self) -> None:
        server: Any = self.server
        length = int(self.headers.get("Content-Length") or 0)
        seen = {
            "method": self.command,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.rfile.read(length),
        }
        server.seen.append(seen)
        status, body = server.answers.get(urlsplit(self.path).path, (404, "no"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_PATCH = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(
    answers: dict[str, tuple[int, str]], address: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer((address, port), Scripted)
    server.answers, server.seen = answers, []
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(program), *arguments], capture_output=True, text=True, check=False)


def server_tls(folder: Path) -> tuple[ssl.SSLContext, Any]:
    authority = CERTIFICATES.Authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("node"))
    return context, authority


def test_the_probe_says_whether_all_is_well(tmp_path: Path) -> None:
    with serving({"/health": (200, "{}"), "/ready": (503, '{"status": "warming"}')}) as server:
        base = f"http://127.0.0.1:{server.server_port}"
        assert run(PROBE, f"{base}/health").returncode == 0
        done = run(PROBE, f"{base}/ready")
        assert done.returncode == 1
        assert "503" in done.stderr
        assert "warming" in done.stderr
    gone = run(PROBE, f"{base}/health")
    assert (gone.returncode, "Traceback" in gone.stderr) == (1, False)
    context, _ = server_tls(tmp_path)
    with serving({"/health": (200, "{}")}, tls=context) as server:
        assert run(PROBE, f"https://127.0.0.1:{server.server_port}/health").returncode == 0


@pytest.mark.parametrize("arguments", [(), ("9101",), ("ftp://127.0.0.1/",), ("http:///health",)])
def test_a_probe_that_cannot_be_asked_is_a_mistake(arguments: tuple[str, ...]) -> None:
    done = run(PROBE, *arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def pod(name: str, address: str, cost: str | None = None, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "annotations": {ANNOTATION: cost} if cost is not None else {}, **more}
    return {"metadata": meta, "status": {"phase": "Running", "podIP": address}}


def metrics(mib: float, name: str = "kvterrace_cluster_hot_last_copy_bytes") -> dict[str, tuple[int, str]]:
    return {"/metrics": (200, f"# HELP {name} x\n{name} {mib * 2**20}\nkvterrace_store_acquires_total 3.0\n")}


@contextmanager
def kubernetes(*pods: dict[str, Any]) -> Iterator[Any]:
    base = "/api/v1/namespaces/ns/pods"
    answers = {base: (200, json.dumps({"items": pods}))}
    answers |= {f"{base}/{each['metadata']['name']}": (200, "{}") for each in pods}
    with serving(answers) as server:
        yield server


def patches(server: Any) -> dict[str, str]:
    return {
        each["path"].rsplit("/", 1)[1]: json.loads(each["body"])["metadata"]["annotations"][ANNOTATION]
        for each in server.seen
        if each["method"] == "PATCH"
    }


def tell(server: Any, port: int, *more: str) -> subprocess.CompletedProcess[str]:
    api = f"http://127.0.0.1:{server.server_port}"
    flags = ("--namespace", "ns", "--selector", "a=b,c=d", "--port", str(port), "--api", api, "--timeout", "2")
    return run(COST, *flags, *more)


def test_the_warm_pod_becomes_the_dear_one() -> None:
    with serving(metrics(4096.0)) as warm:
        port = warm.server_port
        with serving(metrics(12.0), "127.0.0.2", port), serving(metrics(100.0), "127.0.0.3", port):
            pods = [
                pod("warm", "127.0.0.1"),
                pod("cold", "127.0.0.2", "5000"),
                pod("same", "127.0.0.3", "97"),
                pod("going", "127.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z"),
                {"metadata": {"name": "pending"}, "status": {"phase": "Pending"}},
            ]
            with kubernetes(*pods) as server:
                done = tell(server, port)
                assert done.returncode == 0, done.stderr
                # "same" has changed by less than a tenth: a write to etcd would change no order.
                assert patches(server) == {"warm": "4096", "cold": "12"}
                asked = urlsplit(server.seen[0]["path"])
                assert parse_qs(asked.query)["labelSelector"] == ["a=b,c=d"]
                kinds = {each["headers"]["Content-Type"] for each in server.seen if each["method"] == "PATCH"}
                assert kinds == {"application/merge-patch+json"}


def test_a_pod_that_does_not_answer_keeps_its_cost_and_others_get_theirs() -> None:
    with serving(metrics(7.0)) as good:
        pods = [pod("gone", "127.0.0.9", "5"), pod("good", "127.0.0.1"), pod("mute", "127.0.0.8", "6")]
        with serving({"/metrics": (200, "up 1\n")}, "127.0.0.8", good.server_port), kubernetes(*pods) as server:
            done = tell(server, good.server_port)
            assert patches(server) == {"good": "7"}
    assert done.returncode == 1
    assert re.search(r"gone: 127\.0\.0\.9:\d+: ", done.stderr)
    assert "mute: its metrics do not say" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_cluster_what_dram_holds_counts() -> None:
    name = 'kvterrace_store_tier_used_bytes{tier="dram"}'
    assert DELETION_COST.cost_of(metrics(64, name)["/metrics"][1]) == 64
    assert DELETION_COST.cost_of("") is None
    assert DELETION_COST.cost_of("kvterrace_cluster_hot_last_copy_bytes NaN\n") is None
    assert DELETION_COST.cost_of("kvterrace_cluster_hot_last_copy_bytes 1e30\n") == 2**31 - 1


def test_pods_are_asked_over_tls_with_a_token(tmp_path: Path) -> None:
    context, authority = server_tls(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    with serving(metrics(3.0), tls=context) as node, kubernetes(pod("a", "127.0.0.1")) as server:
        done = tell(server, node.server_port, "--ca", str(authority.file), "--token-file", str(tmp_path / "token"))
        assert done.returncode == 0, done.stderr
        assert patches(server) == {"a": "3"}
        assert node.seen[0]["headers"]["Authorization"] == "Bearer secret"
    other = CERTIFICATES.Authority(tmp_path, "other")
    with serving(metrics(3.0), tls=context) as node, kubernetes(pod("a", "127.0.0.1")) as server:
        done = tell(server, node.server_port, "--ca", str(other.file))
        assert (done.returncode, patches(server)) == (1, {})
        assert "certificate verify failed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--namespace", "ns"), "--selector"),
        (("--namespace", "ns", "--selector", "a=b"), "KUBERNETES_SERVICE_HOST is not set"),
        (("--namespace", "ns", "--selector", "a=b", "--ca", "/no/such.pem"), "No such file"),
        (("--namespace", "ns", "--selector", "a=b", "--cert", "/a"), "--cert and --key are given together"),
        (("--namespace", "ns", "--selector", "a=b", "--api", "https://x"), "--api"),
    ],
)
def test_mistakes_are_named(arguments: tuple[str, ...], said: str) -> None:
    done = run(COST, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_kubernetes_that_refuses_is_told() -> None:
    with serving({}) as server:
        done = tell(server, 1)
    assert done.returncode == 1
    assert "404" in done.stderr
    assert "Traceback" not in done.stderr
