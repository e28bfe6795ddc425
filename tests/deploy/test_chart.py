"""The Helm chart: linted, valid for Kubernetes, refusing what cannot work, and true to what the program needs."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

pytestmark = pytest.mark.unit

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "kvterrace"
SETS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*.yaml"))
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject", "Certificate"}
OPEN = "security.insecureListen=true"


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    found = [each for each in objects if each["kind"] == kind]
    assert found, f"there is no {kind}"
    return found[0]


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = [
        each for each in objects if each["metadata"]["name"] == "rel-kvterrace" and "template" in each.get("spec", {})
    ]
    return kinds[0]["spec"]["template"]["spec"]


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in [*pod.get("initContainers", []), *pod["containers"]] if each["name"] == name)


def mib(quantity: str) -> int:
    assert quantity.endswith("Mi")
    return int(quantity[:-2])


@pytest.mark.parametrize("values", SETS)
def test_lint(values: str, tool: Callable[[str], str]) -> None:
    command = [tool("helm"), "lint", "--strict", str(CHART), "-f", str(CHART / "ci" / f"{values}-values.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1.29.0", "1.37.0"])
@pytest.mark.parametrize("values", SETS)
def test_kubernetes_takes_it(values: str, version: str, rendered: Callable[..., list[dict[str, Any]]]) -> None:
    for each in rendered(values):
        if each["kind"] not in CUSTOM:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize(
    ("values", "sets", "said"),
    [
        ("", (), "engine.modelVolume"),
        ("sidecar", ("security.insecureListen=false",), "security.tls and engine.apiKeysSecret"),
        ("cluster", ("security.insecureListen=false",), "security: nodes of a cluster"),
        ("cluster", ("cluster.valkey.url=redis://a:1",), "exactly one of url, existingSecret and deploy"),
        ("cluster", ("cluster.valkey.deploy=false",), "exactly one of url, existingSecret and deploy"),
        ("cluster", ("deletionCost.enabled=true",), "a StatefulSet removes its last pod"),
        ("sidecar", ("engine.enabled=false",), "a sidecar without an engine serves nobody"),
        ("sidecar", ("security.keyringSecret=k",), "nothing is written that could be encrypted"),
        ("sidecar", ("nvme.ownership=true",), "is for nvme.hostPath"),
        ("store", ("security.nodeTokenSecret=",), "other nodes will ask this one who it is"),
        ("store", ("autoscaling.kind=hpa",), "engine.enabled is false"),
        ("cluster", ("autoscaling.maxReplicas=1",), "is below autoscaling.minReplicas"),
        ("sidecar-tls", ("security.tls.certManager.issuerRef.name=",), "which issuer shall sign"),
        ("sidecar", ("security.insecureListen=no-bool",), "security.insecureListen"),
        ("sidecar", ("sidecar.dram=4Gi",), "dram"),
        ("sidecar", ("mode=standalone",), "mode"),
    ],
)
def test_values_that_cannot_work_are_refused_by_their_name(
    values: str, sets: tuple[str, ...], said: str, refused: Callable[..., str]
) -> None:
    assert said in refused(values, *sets)


def test_every_value_is_read_by_a_template() -> None:
    templates = "\n".join(path.read_text() for path in (CHART / "templates").iterdir())

    def leaves(node: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for key, value in node.items():
            yield from leaves(value, (*path, key)) if isinstance(value, dict) and value else [(*path, key)]

    # A part of the tree may be handed on whole, by toYaml or `with`.
    whole = {"issuerRef", "retention", "resources", "labels", "annotations", "grafana_dashboard", "image", "slo"}
    unread = [
        ".".join(path)
        for path in leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
        if not re.search(rf"\.{path[-1]}\b", templates) and not whole & set(path)
    ]
    assert not unread


def test_the_schema_knows_every_value_and_no_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: dict[str, Any], known: dict[str, Any], path: str) -> Iterator[str]:
        properties = known.get("properties", {})
        yield from (f"{path}{key} is in the schema alone" for key in properties.keys() - values.keys() - {"global"})
        for key, value in values.items():
            if key not in properties and known.get("additionalProperties") is False:
                yield f"{path}{key} is not in the schema"
            elif isinstance(value, dict) and "properties" in properties.get(key, {}):
                yield from compare(value, properties[key], f"{path}{key}.")

    wrong = list(compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, ""))
    assert wrong in ([], ["security.tls.certManager.issuerRef.group is in the schema alone"])


@pytest.mark.parametrize("values", SETS)
def test_every_container_is_locked_down(values: str, rendered: Callable[..., list[dict[str, Any]]]) -> None:
    for each in rendered(values):
        if each["kind"] not in {"Deployment", "StatefulSet", "CronJob"}:
            continue
        spec = each["spec"]["jobTemplate"]["spec"] if each["kind"] == "CronJob" else each["spec"]
        pod = spec["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is (each["kind"] == "CronJob")
        # A Service named kvterrace would set KVTERRACE_PORT, and an unknown KVTERRACE_ variable stops the start.
        assert pod["enableServiceLinks"] is False
        for one in [*pod.get("initContainers", []), *pod["containers"]]:
            said = one["securityContext"]
            assert said["allowPrivilegeEscalation"] is False
            assert said["readOnlyRootFilesystem"] is True
            assert said["capabilities"]["drop"] == ["ALL"]
            assert one["name"] == "ownership" or "runAsUser" not in said
            assert one["resources"]["limits"]["memory"], "unbounded memory"


@pytest.mark.parametrize("values", ["sidecar", "store"])
def test_the_arena_fits_its_volume_and_the_volume_fits_the_memory_limit(
    values: str, rendered: Callable[..., list[dict[str, Any]]]
) -> None:
    for dram_mib in (64, 200_000):
        pod = pod_of(rendered(values, f"sidecar.dramMiB={dram_mib}"))
        volume = next(each for each in pod["volumes"] if each["name"] == "arena")["emptyDir"]
        assert volume["medium"] == "Memory"
        needed = dram_mib * (1 << 20) + (dram_mib << 20) // 4096 * 4 + 2 * 4096  # data, generations, header, rounding
        assert mib(volume["sizeLimit"]) << 20 >= needed
        sidecar = container(pod, "kvterrace")
        assert mib(sidecar["resources"]["limits"]["memory"]) >= mib(volume["sizeLimit"]) + 256
        assert sidecar["args"][sidecar["args"].index("--dram") + 1] == f"{dram_mib}MiB"


@pytest.mark.parametrize("values", [each for each in SETS if each != "store"])
def test_engine_and_sidecar_meet(values: str, rendered: Callable[..., list[dict[str, Any]]]) -> None:
    pod = pod_of(rendered(values))
    sidecar, engine = container(pod, "kvterrace"), container(pod, "engine")
    assert sidecar["restartPolicy"] == "Always", "it starts before the engine and ends after it"
    for place in ("/dev/shm", "/run/kvterrace"):
        names = [
            next(mount["name"] for mount in each["volumeMounts"] if mount["mountPath"] == place)
            for each in (sidecar, engine)
        ]
        assert names[0] == names[1]
    socket = sidecar["args"][sidecar["args"].index("--uds") + 1]
    assert engine["args"][engine["args"].index("--kv-address") + 1] == f"unix:{socket}"
    # Kubernetes' volumes may be written by everybody; the program refuses such a directory, and makes one of its own.
    assert Path(socket).parent != Path("/run/kvterrace")


@pytest.mark.parametrize("values", SETS)
def test_a_pod_has_time_to_hand_over(values: str, rendered: Callable[..., list[dict[str, Any]]]) -> None:
    pod = pod_of(rendered(values, "cluster.drainSeconds=200"))
    sidecar = container(pod, "kvterrace")
    drain = sidecar.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", [])
    if values == "sidecar":
        assert not drain, "there is nobody to hand over to"
    else:
        # Without --stay the process would end, and its preStop with it, before the engine's last requests.
        assert drain == ["kvterrace", "drain", "--stay", "--deadline", "200"]
        assert pod["terminationGracePeriodSeconds"] >= 200 + 30
    grace = next((each for each in pod["containers"] if each["name"] == "engine"), None)
    if grace is not None:
        seconds = int(grace["args"][grace["args"].index("--grace") + 1])
        assert pod["terminationGracePeriodSeconds"] >= seconds + 5 + 30


def test_probes_reach_what_listens(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    exposed = container(pod_of(rendered("sidecar-tls")), "kvterrace")
    assert exposed["livenessProbe"]["httpGet"] == {"path": "/health", "port": "http", "scheme": "HTTPS"}
    assert exposed["args"][exposed["args"].index("--http") + 1] == "0.0.0.0:9101"
    sets = ("security.insecureListen=false", "security.tls.secretName=s", "engine.apiKeysSecret=k")
    assert container(pod_of(rendered("sidecar", *sets)), "engine")["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_nvme_claims_stay_with_the_pods_of_a_cluster(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    stateful = of_kind(rendered("cluster"), "StatefulSet")["spec"]
    claim = stateful["volumeClaimTemplates"][0]
    assert claim["metadata"]["name"] == "nvme"
    # The cap, what is left free (1 GiB), and what a file system takes.
    assert int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) >= 100 * 1.05 + 1
    assert stateful["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert stateful["serviceName"] == "rel-kvterrace-nodes"
    service = next(each for each in rendered("cluster") if each["metadata"]["name"] == "rel-kvterrace-nodes")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    ephemeral = next(each for each in pod_of(rendered("sidecar-tls"))["volumes"] if each["name"] == "nvme")
    assert "volumeClaimTemplate" in ephemeral["ephemeral"]


def test_nodes_are_dialled_by_names_that_their_certificate_has(
    rendered: Callable[..., list[dict[str, Any]]],
) -> None:
    names = of_kind(rendered("sidecar-tls"), "Certificate")["spec"]["dnsNames"]
    script = container(pod_of(rendered("sidecar-tls")), "kvterrace")["command"][-2]
    done = subprocess.run(
        ["/bin/sh", "-ec", script.replace("exec kvterrace", "echo"), "kvterrace", "serve"],
        env={"POD_IP": "10.2.33.4", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    advertised = done.stdout.split()[-1].removesuffix(":9100")
    host, _, domain = advertised.partition(".")
    assert (done.stdout.split()[0], host) == ("serve", "10-2-33-4")
    assert f"*.{domain}" in names
    store = container(pod_of(rendered("store")), "kvterrace")["args"]
    advertised = store[store.index("--advertise") + 1]
    assert advertised == "$(POD_NAME).rel-kvterrace-nodes.ns.svc.cluster.local:9100"


def test_the_network_lets_in_whom_it_must(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    policy = next(each for each in rendered("sidecar-tls") if each["kind"] == "NetworkPolicy")
    by_port = {port["port"]: rule.get("from") for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert by_port.keys() == {8000, 9100, 9101, 9102}
    assert all(peers for peers in by_port.values())
    nodes = by_port[9100][0]["podSelector"]["matchLabels"]
    assert nodes["app.kubernetes.io/component"] == "node"
    alone = next(each for each in rendered("sidecar") if each["kind"] == "NetworkPolicy")
    assert [port["port"] for rule in alone["spec"]["ingress"] for port in rule["ports"]] == [8000]


def test_the_objective_reaches_the_engine(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    said = container(pod_of(rendered("sidecar-tls")), "engine")["args"]
    assert (said[said.index("--slo-ttft") + 1], said[said.index("--slo-itl") + 1]) == ("0.8", "0.05")
    assert "--slo-ttft" not in container(pod_of(rendered("sidecar")), "engine")["args"]


def test_scaling_says_what_it_scales(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    hpa = of_kind(rendered("sidecar-tls"), "HorizontalPodAutoscaler")["spec"]
    assert hpa["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "rel-kvterrace"}
    assert "replicas" not in of_kind(rendered("sidecar-tls"), "Deployment")["spec"], "an upgrade would undo the scaling"
    assert hpa["behavior"]["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
    keda = of_kind(rendered("cluster"), "ScaledObject")["spec"]
    assert keda["scaleTargetRef"]["kind"] == "StatefulSet"
    assert {each["name"]: each["metadata"]["threshold"] for each in keda["triggers"]} == {
        "load": "0.8",
        "requests": "4",
    }


def test_the_deletion_cost_job_may_do_no_more_than_it_must(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    objects = rendered("sidecar-tls")
    assert of_kind(objects, "Role")["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}]
    job = of_kind(objects, "CronJob")["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    labels = job["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] != "node", "services and policies of nodes would take it for one"


def test_secrets_are_readable_by_the_group_alone(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    pod = pod_of(rendered("sidecar-tls"))
    secrets = [each for each in pod["volumes"] if "secret" in each]
    assert {each["name"] for each in secrets} == {"tls", "identities", "tenants", "keyring", "api-keys"}
    assert all(each["secret"]["defaultMode"] == 0o440 for each in secrets)
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    # A URL with a password is in no argument, where everybody who may look at pods reads it.
    variables = {each["name"]: each for each in container(pod, "kvterrace")["env"]}
    assert variables["KVTERRACE_CLUSTER"]["valueFrom"] == {"secretKeyRef": {"name": "valkey-url", "key": "url"}}


def test_rules_and_dashboards_arrive_unchanged(rendered: Callable[..., list[dict[str, Any]]]) -> None:
    objects = rendered("sidecar-tls")
    rules = yaml.safe_load((CHART / "files" / "rules.yaml").read_text())
    assert of_kind(objects, "PrometheusRule")["spec"] == rules
    boards = of_kind(objects, "ConfigMap")["data"]
    assert set(boards) == {path.name for path in (CHART / "files" / "dashboards").glob("*.json")}
    for name, text in boards.items():
        assert json.loads(text) == json.loads((CHART / "files" / "dashboards" / name).read_text())
