#!/usr/bin/env python3
"""Tells Kubernetes which replica is the dearest to lose: one round, then it ends. Meant for a CronJob.

Each running pod of `--selector` is asked for its metrics; what only it has and was used within five minutes
(kvterrace_cluster_hot_last_copy_bytes; without a cluster, what its DRAM holds) becomes its annotation
controller.kubernetes.io/pod-deletion-cost, in MiB. When a Deployment is scaled down, its ReplicaSet removes the
cheapest pods first. (A StatefulSet always removes the last one, whatever it costs.)

A pod that does not answer keeps what it has: that it is slow says nothing of how warm it is. Exit code 1 when
Kubernetes or any pod did not answer. Standard library only; bounded by `--timeout` a call and MAX_PODS.
"""

import argparse
import http.client
import json
import os
import re
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LAST_COPIES = "kvterrace_cluster_hot_last_copy_bytes"
DRAM = 'kvterrace_store_tier_used_bytes{tier="dram"}'
MIB = 1 << 20
MAX_COST = 2**31 - 1
MAX_PODS = 1000
MAX_ANSWER_BYTES = 16 << 20
CHANGE = 0.1  # each patch is a write to etcd: only what changes the order is worth one


class NoAnswer(Exception):
    """Says who did not give one, and why."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, and what to show. context: None = no TLS."""

    host: str
    port: int
    context: ssl.SSLContext | None
    token: str
    timeout_s: float

    def call(self, method: str, path: str, body: str | None = None, kind: str = "application/json") -> bytes:
        """The body of a good answer. NoAnswer."""
        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout_s, context=self.context)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            connection.request(method, path, body, headers | ({"Content-Type": kind} if body else {}))
            answer = connection.getresponse()
            said = answer.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{self.host}:{self.port}: {error}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise NoAnswer(f"{self.host}:{self.port}: {answer.status} for {method} {path}")
        return said


@dataclass(frozen=True, slots=True)
class Pod:
    """cost: its annotation as it is; None = it has none, or one that is no number."""

    name: str
    address: str
    cost: int | None


def running(pods: Mapping[str, Any]) -> Iterator[Pod]:
    """Of Kubernetes' PodList: those that run, have an address and are not being deleted."""
    for item in pods["items"][:MAX_PODS]:
        meta, status = item["metadata"], item.get("status", {})
        if status.get("phase") != "Running" or not status.get("podIP") or meta.get("deletionTimestamp"):
            continue
        said = meta.get("annotations", {}).get(ANNOTATION, "")
        yield Pod(meta["name"], status["podIP"], int(said) if re.fullmatch(r"-?\d{1,10}", said) else None)


def cost_of(metrics: str) -> int | None:
    """MiB, of a sidecar's /metrics; None when they do not say."""
    found = {
        line.rpartition(" ")[0]: line.rpartition(" ")[2]
        for line in metrics.splitlines()
        if line.startswith("kvterrace")
    }
    said = found.get(LAST_COPIES, found.get(DRAM))
    if said is None:
        return None
    try:
        return max(0, min(round(float(said) / MIB), MAX_COST))
    except (ValueError, OverflowError):
        return None


def worth_writing(old: int | None, new: int) -> bool:
    """Whether the order of pods may change by it."""
    return old is None or abs(new - old) > CHANGE * max(abs(old), 1)


def once(kubernetes: Server, namespace: str, selector: str, pods: "PodServers") -> list[str]:
    """Every pod is told once; what went wrong. NoAnswer: Kubernetes does not list pods."""
    base = f"/api/v1/namespaces/{quote(namespace)}/pods"
    listed = json.loads(kubernetes.call("GET", f"{base}?labelSelector={quote(selector)}&limit={MAX_PODS}"))
    troubles: list[str] = []
    for pod in running(listed):
        try:
            cost = cost_of(pods.of(pod.address).call("GET", "/metrics").decode(errors="replace"))
            if cost is None:
                troubles.append(f"{pod.name}: its metrics do not say how much it holds")
            elif worth_writing(pod.cost, cost):
                patch = json.dumps({"metadata": {"annotations": {ANNOTATION: str(cost)}}})
                kubernetes.call("PATCH", f"{base}/{quote(pod.name)}", patch, "application/merge-patch+json")
                print(f"{pod.name}: {cost}")
        except NoAnswer as trouble:
            troubles.append(f"{pod.name}: {trouble}")
    return troubles


@dataclass(frozen=True, slots=True)
class PodServers:
    """How the pods' HTTP is asked."""

    port: int
    context: ssl.SSLContext | None
    token: str
    timeout_s: float

    def of(self, address: str) -> Server:
        """The one at that address."""
        return Server(address, self.port, self.context, self.token, self.timeout_s)


def pod_context(ca: Path | None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext | None:
    """None = the pods speak no TLS. A pod is asked by its address, which its certificate does not name; that the CA
    vouches for it is verified. cert, key: to show to it. ValueError: they do not fit together."""
    if (cert is None) != (key is None):
        raise ValueError("--cert and --key are given together")
    if ca is None:
        if cert is not None:
            raise ValueError("--cert needs --ca: without it the pods are asked without TLS")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def kubernetes_server(account: Path, environment: Mapping[str, str], timeout_s: float) -> Server:
    """The cluster that this pod runs in. NoAnswer outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    if not host:
        raise NoAnswer("KUBERNETES_SERVICE_HOST is not set: this runs in a pod, or with --api")
    context = ssl.create_default_context(cafile=account / "ca.crt")
    return Server(host, int(port), context, (account / "token").read_text().strip(), timeout_s)


def api_server(url: str, timeout_s: float) -> Server:
    """Of --api: without TLS and token, such as `kubectl proxy` on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"--api: {url!r} is not http://HOST:PORT")
    return Server(parts.hostname, parts.port or 80, None, "", timeout_s)


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    flags = argparse.ArgumentParser(prog="kvterrace-deletion-cost", description=__doc__.split("\n", maxsplit=1)[0])
    flags.add_argument("--namespace", required=True, help="of the pods")
    flags.add_argument("--selector", required=True, help="label selector of the pods")
    flags.add_argument("--port", type=int, default=9101, help="of the sidecars' HTTP")
    flags.add_argument("--ca", type=Path, help="PEM file of the CA of the sidecars; without it they speak no TLS")
    flags.add_argument("--cert", type=Path, help="PEM file of the certificate to show to them")
    flags.add_argument("--key", type=Path, help="PEM file of the key of --cert")
    flags.add_argument("--token-file", type=Path, help="file of a token with the role reader")
    flags.add_argument("--timeout", type=float, default=5.0, help="seconds a call may take")
    flags.add_argument("--api", help="of Kubernetes, such as http://127.0.0.1:8001; default: this pod's cluster")
    return flags


def main() -> int:
    given = parser().parse_args()
    try:
        token = given.token_file.read_text().strip() if given.token_file else ""
        pods = PodServers(given.port, pod_context(given.ca, given.cert, given.key), token, given.timeout)
        kubernetes = (
            api_server(given.api, given.timeout) if given.api else kubernetes_server(ACCOUNT, os.environ, given.timeout)
        )
    except (OSError, ValueError) as error:
        print(f"kvterrace-deletion-cost: {error}", file=sys.stderr)
        return 2
    except NoAnswer as trouble:
        print(f"kvterrace-deletion-cost: {trouble}", file=sys.stderr)
        return 2
    try:
        troubles = once(kubernetes, given.namespace, given.selector, pods)
    except NoAnswer as trouble:
        troubles = [str(trouble)]
    for trouble in troubles:
        print(f"kvterrace-deletion-cost: {trouble}", file=sys.stderr)
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
