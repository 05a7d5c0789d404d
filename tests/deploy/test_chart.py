"""The chart, rendered by Helm itself with several sets of values."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import render_manifests as manifests
import yaml
from typed import check

Document = dict[str, Any]
ROOT = manifests.ROOT
VALUES = yaml.safe_load((manifests.CHART / "values.yaml").read_text())
SCHEMA = json.loads((manifests.CHART / "values.schema.json").read_text())
EVERYTHING = (
    "--set=headroom.replicas=1,gateway.autoscaling.enabled=true,node.autoscaling.hpa=true,gateway.tlsSecret=web",
    "--set=gateway.ingress.enabled=true,gateway.ingress.host=jar.example.com,gateway.ingress.tlsSecret=web",
    "--set=monitoring.serviceMonitor=true,monitoring.prometheusRule=true,monitoring.dashboard=true",
    "--set=monitoring.labels.release=prometheus,image.pullSecrets[0].name=registry,gateway.publicUrl=https://jar.example.com",
    "--set=node.sandboxImage=registry.example.com/sandbox:1,node.antiAffinity=preferred,gateway.nodeSelector.pool=web",
    "--set=networkPolicy.databaseTo[0].ipBlock.cidr=10.1.2.3/32,networkPolicy.gatewayFrom[0].namespaceSelector.matchLabels.a=b",
    "--set=networkPolicy.blobsEgress[0].ports[0].port=3900,blobs.endpoint=http://garage:3900",
    "--set-string=node.settings.BELLJAR_MEMORY=1G,gateway.settings.BELLJAR_LOG_FORMAT=text",
)
CASES: dict[str, tuple[str, ...]] = {
    "default": (),
    "user-namespace": ("--set=node.posture=userNamespace",),
    "keda": ("--set=node.autoscaling.keda=true",),
    "no-rbac": ("--set=rbac.create=false",),
    "existing-secrets": (
        "--set=database.existingSecret=pg,database.key=dsn,blobs.existingSecret=bucket,blobs.accessKeyIdKey=id",
        "--set=blobs.secretAccessKeyKey=secret,clusterCA.existingSecret=ca,clusterCA.certKey=ca.crt,clusterCA.keyKey=ca.key",
    ),
    "secrets-in-values": (
        "--set=database.url=postgres://belljar@db/belljar,blobs.accessKeyId=id,blobs.secretAccessKey=secret",
    ),
    "workload-identity": ("--set=blobs.existingSecret=,node.serviceAccountAnnotations.role=belljar",),
    "everything": EVERYTHING,
    "nothing-extra": (
        "--set=rbac.create=false,networkPolicy.enabled=false,podDisruptionBudget.enabled=false",
        "--set=priorityClass.create=false,migrations.enabled=false",
    ),
}


@cache
def rendered(case: str) -> str:
    return json.dumps(manifests.render(*CASES[case]))


@pytest.fixture(params=CASES)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    return json.loads(rendered(request.param))


def of(case: str) -> dict[tuple[str, str], Document]:
    return {(d["kind"], d["metadata"]["name"]): d for d in json.loads(rendered(case))}


def pod_of(document: Document) -> Document:
    return document["spec"]["template"]


def containers(document: Document) -> list[Document]:
    spec = pod_of(document)["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def env_of(document: Document) -> dict[str, Any]:
    (container,) = pod_of(document)["spec"]["containers"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_every_field_exists_in_the_api(documents: list[Document]) -> None:
    for document in documents:
        check(document)


def test_a_misspelt_field_is_found() -> None:
    document = of("default")[("Deployment", "belljar-node")]
    pod_of(document)["spec"]["hostUser"] = False
    with pytest.raises(AssertionError, match=r"spec\.template\.spec\.hostUser"):
        check(document)
    document = of("default")[("Deployment", "belljar-node")]
    document["spec"]["replicas"] = "3"
    with pytest.raises(Exception, match="Expected `int"):
        check(document)
    document = of("keda")[("ScaledObject", "belljar-node")]
    document["spec"]["maxReplicas"] = 3
    with pytest.raises(jsonschema.ValidationError):
        check(document)


def test_names_are_unique(documents: list[Document]) -> None:
    names = [(d["kind"], d["metadata"]["name"]) for d in documents]
    assert len(set(names)) == len(names)


def test_everything_that_is_named_exists(documents: list[Document]) -> None:
    kinds: dict[str, set[str]] = {}
    for document in documents:
        kinds.setdefault(document["kind"], set()).add(document["metadata"]["name"])
    for document in documents:
        if document["kind"] in ("Deployment", "Job"):
            spec = pod_of(document)["spec"]
            if "serviceAccountName" in spec:
                assert spec["serviceAccountName"] in kinds["ServiceAccount"]
            if "priorityClassName" in spec:
                assert spec["priorityClassName"] in kinds["PriorityClass"]
            if "runtimeClassName" in spec:
                assert spec["runtimeClassName"] in kinds["RuntimeClass"]
            volumes = {volume["name"] for volume in spec.get("volumes", [])}
            mounts = [mount for container in containers(document) for mount in container.get("volumeMounts", [])]
            assert {mount["name"] for mount in mounts} == volumes
            # All users can write to an emptyDir, and Belljar refuses such a directory for its sockets.
            assert not [mount for mount in mounts if mount["mountPath"].startswith("/run")]
        if target := document.get("spec", {}).get("scaleTargetRef"):
            assert target["name"] in kinds[target["kind"]]
        if document["kind"] == "RoleBinding":
            assert document["roleRef"]["name"] in kinds["Role"]
            assert {subject["name"] for subject in document["subjects"]} <= kinds["ServiceAccount"]


def test_selectors_find_pods_and_ports(documents: list[Document]) -> None:
    pods = [pod_of(d) for d in documents if d["kind"] == "Deployment"]

    def found(labels: dict[str, str]) -> list[Document]:
        return [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]

    for document in documents:
        spec = document.get("spec", {})
        if document["kind"] == "Service":
            (pod,) = found(spec["selector"])
            (container,) = pod["spec"]["containers"]
            assert {port["targetPort"] for port in spec["ports"]} <= {port["name"] for port in container["ports"]}
        if document["kind"] == "Deployment":
            assert len(found(spec["selector"]["matchLabels"])) == 1
        if document["kind"] == "PodDisruptionBudget":
            assert len(found(spec["selector"]["matchLabels"])) == 1
        if document["kind"] == "NetworkPolicy":
            (pod,) = found(spec["podSelector"]["matchLabels"])
            open_ports = {port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
            assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} <= open_ports
        if document["kind"] == "ServiceMonitor":
            wanted = spec["selector"]["matchLabels"].items()
            services = [d for d in documents if d["kind"] == "Service" and wanted <= d["metadata"]["labels"].items()]
            assert {d["metadata"]["name"] for d in services} == {"belljar-node", "belljar-gateway-health"}
            (endpoint,) = spec["endpoints"]
            assert all(endpoint["port"] in {port["name"] for port in d["spec"]["ports"]} for d in services)


#: Of Kubernetes, not of Belljar.
POD = {"POD_IP"}


def documented() -> set[str]:
    return set(re.findall(r"^\| `([A-Z_]+)`", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE))


def test_every_variable_is_a_setting(documents: list[Document]) -> None:
    for document in documents:
        if document["kind"] in ("Deployment", "Job"):
            for container in containers(document):
                names = [entry["name"] for entry in container.get("env", [])]
                assert len(set(names)) == len(names), f"a variable is set twice: {names}"
                assert not set(names) - documented() - POD


def test_node_identity_and_end() -> None:
    node = of("default")[("Deployment", "belljar-node")]
    spec = pod_of(node)["spec"]
    env = env_of(node)
    assert env["BELLJAR_NODE_ID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert env["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert env["BELLJAR_NODE_ADDRESS"] == "$(POD_IP):8444"
    order = [entry["name"] for entry in spec["containers"][0]["env"]]
    assert order.index("POD_IP") < order.index("BELLJAR_NODE_ADDRESS"), "Kubernetes expands only earlier variables"
    program = "/usr/local/bin/belljar"
    assert spec["containers"][0]["command"] == [program, "init", "--", program, "node"]
    assert spec["terminationGracePeriodSeconds"] == 600
    assert env["BELLJAR_NODE_DRAIN_S"] == "570", "the rest of the time is for requests in progress"
    assert "lifecycle" not in spec["containers"][0]
    assert spec["automountServiceAccountToken"] is False
    (rule,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"


def test_postures() -> None:
    privileged = pod_of(of("default")[("Deployment", "belljar-node")])["spec"]
    assert privileged["containers"][0]["securityContext"] == {"runAsUser": 0, "privileged": True}
    assert "hostUsers" not in privileged
    spec = pod_of(of("user-namespace")[("Deployment", "belljar-node")])["spec"]
    assert spec["hostUsers"] is False
    assert spec["runtimeClassName"] == "belljar"
    security = spec["containers"][0]["securityContext"]
    assert security["procMount"] == "Unmasked"
    assert security["privileged"] is False
    capabilities = "SYS_ADMIN SETUID SETGID CHOWN DAC_OVERRIDE FOWNER KILL SETPCAP SYS_CHROOT".split()
    assert security["capabilities"] == {"drop": ["ALL"], "add": capabilities}
    # Kubernetes refuses these with a user namespace.
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    with pytest.raises(ValueError, match=r"needs Kubernetes 1\.33"):
        manifests.render(*CASES["user-namespace"], kubernetes="1.32.0")


def test_a_gateway_has_no_rights_of_its_own() -> None:
    spec = pod_of(of("default")[("Deployment", "belljar-gateway")])["spec"]
    security = spec["containers"][0]["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsNonRoot"] is True
    names = set(env_of(of("default")[("Deployment", "belljar-gateway")]))
    assert not names & {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "BELLJAR_BLOBS_URL"}, "only nodes use S3"


def test_without_rbac_there_is_no_token() -> None:
    found = of("no-rbac")
    assert not [kind for kind, _ in found if kind.startswith("Role")]
    assert pod_of(found[("Deployment", "belljar-gateway")])["spec"]["automountServiceAccountToken"] is False
    (rules,) = of("default")[("Role", "belljar-gateway")]["rules"]
    assert rules == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}


def test_secrets() -> None:
    env = env_of(of("existing-secrets")[("Deployment", "belljar-node")])
    assert env["BELLJAR_DATABASE_URL"] == {"secretKeyRef": {"name": "pg", "key": "dsn"}}
    assert env["AWS_SECRET_ACCESS_KEY"] == {"secretKeyRef": {"name": "bucket", "key": "secret"}}
    assert env["BELLJAR_CLUSTER_CA_KEY"] == "/etc/belljar/cluster-ca/ca.key"
    found = of("secrets-in-values")
    assert found[("Secret", "belljar-database")]["stringData"] == {"url": "postgres://belljar@db/belljar"}
    gateway = env_of(found[("Deployment", "belljar-gateway")])
    assert gateway["BELLJAR_DATABASE_URL"]["secretKeyRef"]["name"] == "belljar-database"
    # The Secret of a hook must exist before the Job that needs it.
    hooks = [
        found[key]["metadata"]["annotations"] for key in (("Secret", "belljar-database"), ("Job", "belljar-migrate"))
    ]
    assert [int(hook["helm.sh/hook-weight"]) for hook in hooks] == [-10, 0]
    assert not [kind for kind, _ in of("default") if kind == "Secret"], "no secret in the default rendering"
    assert "AWS_ACCESS_KEY_ID" not in env_of(of("workload-identity")[("Deployment", "belljar-node")])


def test_network_policies() -> None:
    found = of("default")
    node = found[("NetworkPolicy", "belljar-node")]["spec"]
    assert node["ingress"][0]["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert node["ingress"][0]["ports"] == [{"port": 8444}]
    internet = [peer["ipBlock"] for rule in node["egress"] for peer in rule.get("to", []) if "ipBlock" in peer]
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= set(internet[0]["except"])
    assert internet[1] == {"cidr": "2000::/3"}
    gateway = found[("NetworkPolicy", "belljar-gateway")]["spec"]
    assert {"port": 8444} in [port for rule in gateway["egress"] for port in rule["ports"]]


def test_autoscalers_own_the_number_of_nodes() -> None:
    assert of("default")[("Deployment", "belljar-node")]["spec"]["replicas"] == 3
    for case, kind in (("keda", "ScaledObject"), ("everything", "HorizontalPodAutoscaler")):
        found = of(case)
        assert "replicas" not in found[("Deployment", "belljar-node")]["spec"]
        assert (kind, "belljar-node") in found
    with pytest.raises(ValueError, match="not both"):
        manifests.render("--set=node.autoscaling.keda=true,node.autoscaling.hpa=true")


def test_settings_of_one_component_override_those_of_both() -> None:
    found = of("everything")
    assert env_of(found[("Deployment", "belljar-gateway")])["BELLJAR_LOG_FORMAT"] == "text"
    node = env_of(found[("Deployment", "belljar-node")])
    assert (node["BELLJAR_LOG_FORMAT"], node["BELLJAR_MEMORY"]) == ("json", "1G")
    assert "jar.example.com" in env_of(found[("Deployment", "belljar-gateway")])["BELLJAR_ALLOWED_HOSTS"].split()


def test_another_release_has_other_names() -> None:
    names = {d["metadata"]["name"] for d in manifests.render(release="second")}
    assert all(name.startswith("second-belljar-") for name in names), names
    assert not names & {name for _, name in of("default")}


def test_the_schema_knows_every_value() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)

    def same(values: Any, schema: Document, path: str) -> None:
        if "properties" in schema and schema["properties"] and path not in (".gateway.resources", ".node.resources"):
            assert set(values) == set(schema["properties"]) - {"global"}, path
            for name, value in values.items():
                same(value, schema["properties"][name], f"{path}.{name}")

    same(VALUES, SCHEMA, "")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("node.replica=3", "replica"),
        ("node.posture=rootless", "posture"),
        ("node.settings.BELLJAR_POOL=8", "BELLJAR_POOL"),
        ("blobs.url=/data", "blobs.url|/blobs/url"),
        ("leaseSeconds=2", "leaseSeconds"),
        ("clusterCA.existingSecret=", "existingSecret"),
    ],
)
def test_wrong_values_are_refused(wrong: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        manifests.render(f"--set={wrong}")


@pytest.mark.parametrize("case", CASES)
def test_notes_name_objects_that_exist(case: str, tmp_path: Path) -> None:
    """Helm renders the notes only for an installation, so a copy of the chart has them in a ConfigMap."""
    chart = shutil.copytree(manifests.CHART, tmp_path / "chart")
    notes = (chart / "templates" / "NOTES.txt").read_text()
    (chart / "templates" / "_notes.tpl").write_text(f'{{{{- define "notes" -}}}}\n{notes}{{{{- end -}}}}\n')
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  notes: |-"
    (chart / "templates" / "notes.yaml").write_text(head + '{{ include "notes" . | nindent 4 }}\n')
    helm = Path(sys.executable).parent / "helm"
    command = [helm, "template", "belljar", chart, "--namespace", "belljar", "--kube-version", "1.33.0", *CASES[case]]
    done = subprocess.run([*command, "--show-only", "templates/notes.yaml"], capture_output=True, text=True, check=True)
    text = yaml.safe_load(done.stdout)["data"]["notes"]
    assert "belljar key create" in text
    for kind, name in re.findall(r"(deployment|service)/(\S+)", text):
        assert (kind.title(), name) in of(case)


def test_helm_finds_no_fault() -> None:
    helm = Path(sys.executable).parent / "helm"
    done = subprocess.run([helm, "lint", "--strict", manifests.CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_plain_manifests_are_the_default_rendering() -> None:
    assert manifests.outdated() == []
    for path in manifests.BASE.glob("*.yaml"):
        document = yaml.safe_load(path.read_text())
        if document["kind"] != "Kustomization":
            check(document)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kustomize_keeps_everything() -> None:
    done = subprocess.run(["kubectl", "kustomize", manifests.BASE], capture_output=True, text=True, check=True)
    built = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(done.stdout)}
    for document in map(manifests.plain, json.loads(rendered("default"))):
        expected = copy.deepcopy(document)
        if document["kind"] != "PriorityClass":
            expected["metadata"]["namespace"] = "belljar"
        assert built.pop((document["kind"], document["metadata"]["name"])) == expected
    assert list(built) == [("Namespace", "belljar")]


def exported() -> set[str]:
    """The names of all metrics of servers, nodes and gateways."""
    names = set()
    for path in (ROOT / "crates").rglob("*metrics*.rs"):
        prefix = "belljar_gateway_" if "gateway" in path.parts else "belljar_"
        registered = re.findall(r'(?:register|metric)\(\s*"([a-z_]+)"', path.read_text())
        names |= {prefix + name for name in registered}
    return names


def metrics_in(text: str) -> set[str]:
    return {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\bbelljar_[a-z_]*[a-z]", text)}


def test_manifests_and_documents_name_metrics_that_exist() -> None:
    known = exported()
    assert {"belljar_sessions", "belljar_lease_frozen", "belljar_gateway_nodes"} <= known
    # A crate in a log filter.
    known |= {"belljar_engine"}
    files = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".yaml", ".yml", ".json", ".tpl", ".txt"}]
    files += (ROOT / "docs").rglob("*.md")
    unknown = {path.relative_to(ROOT).as_posix(): metrics_in(path.read_text()) - known for path in files}
    assert {path: names for path, names in unknown.items() if names} == {}


def test_dashboard_and_alerts_use_metrics_that_exist() -> None:
    known = exported()
    found = of("everything")
    board = json.loads(found[("ConfigMap", "belljar-dashboard")]["data"]["belljar.json"])
    rules = [rule for group in found[("PrometheusRule", "belljar")]["spec"]["groups"] for rule in group["rules"]]
    known |= {rule["record"] for rule in rules if "record" in rule}
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [rule["expr"] for rule in rules]
    assert not set().union(*map(metrics_in, expressions)) - known
    groups = [group for path in manifests.COPIES.values() for group in yaml.safe_load(path.read_text())["groups"]]
    assert len(rules) == sum(len(group["rules"]) for group in groups)
    for expression in expressions:
        assert all(expression.count(left) == expression.count(right) for left, right in ("()", "[]", "{}")), expression


def test_the_values_of_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "many-machines.md").read_text()
    (example,) = [block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if block.startswith("image: {")]
    (tmp_path / "values.yaml").write_text(example)
    documents = manifests.render("--values", str(tmp_path / "values.yaml"))
    for document in documents:
        check(document)
    assert "ServiceMonitor" in {document["kind"] for document in documents}


def test_the_documentation_names_things_that_exist() -> None:
    page = (ROOT / "docs" / "how-to" / "many-machines.md").read_text()
    assert set(re.findall(r"\b(BELLJAR_[A-Z_]+[A-Z])\b", page)) <= documented() | {"BELLJAR_PACKAGES"}
    for path in re.findall(r"`(deploy/[a-z./-]+)`", page):
        assert (ROOT / path).exists(), path
    objects = {(kind.lower(), name) for kind, name in of("default")}
    for kind, name in re.findall(r"(deployment)/(\S+)", page):
        assert (kind, name) in objects
    for value in re.findall(r"`((?:node|gateway|headroom|networkPolicy|monitoring|blobs)\.[a-zA-Z.]+)", page):
        values: Any = VALUES
        for part in value.split("."):
            assert part in values, value
            values = values[part]
