"""The compose file, the systemd units, the images and the lists of their contents."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import render_manifests as manifests
import yaml
from test_chart import documented

ROOT = manifests.ROOT
COMPOSE = ROOT / "deploy" / "compose" / "docker-compose.yml"
UNITS = ("belljar.service", "belljar-node.service", "belljar-gateway.service")


def run(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)


def skip(reason: str) -> None:
    """Skips a test and writes the reason into the file that `make test` shows at its end."""
    if path := os.environ.get("SKIPPED_TESTS_FILE"):
        with open(path, "a") as file:
            file.write(f"deploy: {reason}\n")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file as compose itself reads it, or else as YAML."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and run(*command, "version").returncode == 0:
            # Its plugins may be in the user's own directory.
            kept = {name: os.environ[name] for name in ("PATH", "HOME", "DOCKER_CONFIG") if name in os.environ}
            done = run(*command, "--file", COMPOSE, "config", env=kept)
            assert done.returncode == 0, done.stderr
            return yaml.safe_load(done.stdout)
    if path := os.environ.get("SKIPPED_TESTS_FILE"):
        with open(path, "a") as file:
            file.write("deploy: there is no docker compose; the compose file was read as YAML only\n")
    return yaml.safe_load(COMPOSE.read_text())


def test_compose_has_a_whole_cluster(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"postgres", "garage", "ca", "migrate", "node-1", "node-2", "gateway"}
    assert [name for name, service in services.items() if service.get("ports")] == ["gateway"]
    (port,) = services["gateway"]["ports"]
    assert port.startswith("127.0.0.1:") if isinstance(port, str) else port["host_ip"] == "127.0.0.1", port
    for name in ("node-1", "node-2"):
        assert services[name]["privileged"] is True
        assert set(services[name]["depends_on"]) == {"ca", "migrate", "garage"}
    mounted = [volume for service in services.values() for volume in service.get("volumes", [])]
    used = {(volume["source"] if isinstance(volume, dict) else volume).split(":")[0] for volume in mounted}
    assert {name for name in used if "/" not in name} == set(compose["volumes"])


def test_compose_and_chart_agree(compose: dict[str, Any]) -> None:
    """A node and a gateway have the same settings in both, but for what Kubernetes alone knows or has elsewhere."""
    objects = {d["metadata"]["name"]: d for d in manifests.render() if d["kind"] == "Deployment"}
    identity = {"POD_IP", "BELLJAR_NODE_ID", "BELLJAR_NODE_LISTEN", "BELLJAR_NODE_ADDRESS"}
    for service, deployment, other in (
        ("node-1", "belljar-node", identity | {"BELLJAR_MAX_SESSIONS", "BELLJAR_MAX_MEMORY", "BELLJAR_NODE_DRAIN_S"}),
        ("gateway", "belljar-gateway", {"BELLJAR_POD_SELECTOR", "BELLJAR_ALLOWED_HOSTS", "BELLJAR_HOME"}),
    ):
        (container,) = objects[deployment]["spec"]["template"]["spec"]["containers"]
        chart = {entry["name"] for entry in container["env"]} - other - {"BELLJAR_LEASE_S", "BELLJAR_LOG_FORMAT"}
        assert set(compose["services"][service]["environment"]) - {"AWS_ENDPOINT_URL"} == chart
        assert compose["services"][service]["command"] == container["command"]
        assert set(compose["services"][service]["environment"]) <= documented()


def test_compose_makes_an_authority(compose: dict[str, Any], tmp_path: Path) -> None:
    """The script of the service `ca` runs, twice, and makes an authority once."""
    binary = Path(os.environ.get("BELLJAR_BINARY", "/nonexistent"))
    if not binary.is_file() or run(binary, "cluster", "ca", "--help").returncode != 0:
        skip("this binary has no `cluster ca`")
    (tmp_path / "belljar").symlink_to(binary)
    (script,) = compose["services"]["ca"]["command"]
    script = script.replace("/ca", f"{tmp_path}/authority", 1).replace("--out /ca", f"--out {tmp_path}/authority")
    script = script.replace("chown -R", ": chown -R")
    made = set()
    for _ in range(2):
        done = run("sh", "-euc", script, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
        assert done.returncode == 0, done.stderr
        made.add((tmp_path / "authority" / "ca.pem").read_text())
    assert len(made) == 1
    assert "CA:TRUE" in run("openssl", "x509", "-in", tmp_path / "authority" / "ca.pem", "-noout", "-text").stdout


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        skip("there is no systemd-analyze")
    program = tmp_path / "bin" / "belljar"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / name).write_text((ROOT / "packaging" / name).read_text().replace("@PREFIX@", str(tmp_path)))
    done = run("systemd-analyze", "verify", "--man=no", tmp_path / name)
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or line.startswith(name)]
    assert not complaints, done.stderr


def test_units_name_settings_that_exist() -> None:
    for name in UNITS:
        text = (ROOT / "packaging" / name).read_text()
        assert set(re.findall(r"(BELLJAR_[A-Z_]+)=", text)) <= documented()
    for name in UNITS[1:]:
        # Otherwise systemd gives up after five starts in ten seconds.
        assert "\nStartLimitIntervalSec=0\n" in (ROOT / "packaging" / name).read_text()
    assert "TimeoutStopSec=600" in (ROOT / "packaging" / "belljar-node.service").read_text()


def test_the_list_of_contents(tmp_path: Path) -> None:
    """It is the same each time, has all kinds of packages, and its signature fits."""
    if shutil.which("cargo") is None:
        skip("there is no cargo")
    (tmp_path / "deb").write_text("libc6 2.36-9+deb12u14 amd64\n")
    (tmp_path / "pypi").write_text("numpy==2.4.0\n")
    run("openssl", "genpkey", "-algorithm", "ed25519", "-out", tmp_path / "key.pem")
    run("openssl", "pkey", "-in", tmp_path / "key.pem", "-pubout", "-out", tmp_path / "public.pem")
    output = tmp_path / "node.cdx.json"
    command = [sys.executable, ROOT / "scripts" / "make_sbom.py", "--name", "belljar/node", "--version", "1"]
    command += [
        "--output",
        output,
        "--deb",
        tmp_path / "deb",
        "--pypi",
        tmp_path / "pypi",
        "--key",
        tmp_path / "key.pem",
    ]
    texts = []
    for _ in range(2):
        done = run(*command)
        assert done.returncode == 0, done.stderr
        texts.append(output.read_text())
    assert texts[0] == texts[1]
    listed = json.loads(texts[0])
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.5")
    purls = [component["purl"] for component in listed["components"]]
    assert len(set(purls)) == len(purls) > 100
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64" in purls
    assert "pkg:pypi/numpy@2.4.0" in purls
    (tokio,) = [component for component in listed["components"] if component["name"] == "tokio"]
    assert re.fullmatch("[0-9a-f]{64}", tokio["hashes"][0]["content"])
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "public.pem", "-rawin", "-in", output]
    assert run(*verify, "-sigfile", f"{output}.sig").returncode == 0
    output.write_text(texts[0] + " ")
    assert run(*verify, "-sigfile", f"{output}.sig").returncode != 0


def test_the_gateway_image(tmp_path: Path) -> None:
    """The image has the binary, certificates and two files, and runs as an ordinary user."""
    binary = os.environ.get("BELLJAR_BINARY", "")
    if not Path(binary).is_file() or shutil.which("docker") is None or run("docker", "version").returncode != 0:
        skip("no container engine answers; the gateway's image was not made")
    small = tmp_path / "belljar"
    run("strip", "-o", small, binary)
    tag = f"test-{os.getpid()}"
    environment = {**os.environ, "ENGINE": "docker", "TAG": tag, "OUT": str(tmp_path / "out"), "SBOM_KEY": ""}
    try:
        done = run(ROOT / "scripts" / "make-image", small, "gateway", env=environment)
        assert done.returncode == 0, done.stderr
        image = f"belljar/gateway:{tag}"
        (shown,) = json.loads(run("docker", "image", "inspect", image).stdout)
        assert shown["Config"]["User"] == "65532:65532"
        assert shown["Config"]["Cmd"] == ["/usr/local/bin/belljar", "gateway"]
        container = run("docker", "create", image).stdout.strip()
        files = run("sh", "-c", f"docker export {container} | tar -t").stdout.split()
        run("docker", "rm", container)
        # The engine adds these to every container.
        added = {".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "dev/console"}
        ours = {file for file in files if not file.endswith("/")} - added
        assert ours == {"usr/local/bin/belljar", "etc/ssl/certs/ca-certificates.crt", "etc/passwd", "etc/group"}
        arguments = ["--rm", "--network=none", "--read-only", "--cap-drop=ALL"]
        done = run("docker", "run", *arguments, image, "/usr/local/bin/belljar", "--version")
        assert done.stdout.startswith("belljar "), done.stderr
        assert json.loads((tmp_path / "out" / f"gateway-{tag}.cdx.json").read_text())["components"]
    finally:
        run("docker", "image", "rm", "--force", f"belljar/gateway:{tag}")


def test_dockerfile_and_script_make_the_same() -> None:
    """Both install the same packages and start the same programs."""
    dockerfile = (ROOT / "deploy" / "image" / "Dockerfile").read_text()
    script = (ROOT / "scripts" / "make-image").read_text()
    installed = re.search(r"no-install-recommends (.*?) &&", dockerfile, re.DOTALL)
    included = re.search(r"--include=(\S+)", script)
    assert installed
    assert included
    assert sorted(installed[1].replace("\\", " ").split()) == sorted(included[1].split(","))
    commands = re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)
    assert all(f"'CMD {command}'" in script for command in commands)
    assert len(commands) == 2
