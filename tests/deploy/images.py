"""The images that tests of deploy/ run: Belljar's own, and one with Postgres and an S3 server. Nothing is pulled."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / "target" / "image"
TAG = "test"
SERVICES = "belljar/test-services:1"

#: Postgres of Debian, started as the image `postgres` starts it: with the same variables.
POSTGRES = """
set -eu
data=/var/lib/postgresql/data
programs=$(echo /usr/lib/postgresql/*/bin)
as() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
mkdir -p $data /run/postgresql && chown postgres: $data /run/postgresql && chmod 700 $data
if [ ! -e $data/PG_VERSION ]; then
    install -m 644 /dev/null /tmp/password && echo "$POSTGRES_PASSWORD" >/tmp/password
    as $programs/initdb -D $data --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 >/dev/null
    echo 'host all all all scram-sha-256' >>$data/pg_hba.conf
    echo "CREATE DATABASE $POSTGRES_DB" | as $programs/postgres --single -D $data postgres >/dev/null
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups $programs/postgres -D $data -c 'listen_addresses=*'
"""
#: An S3 server (moto) with the bucket `belljar`. It keeps objects in memory and checks no signatures.
S3 = """
import signal
import boto3
from moto.server import ThreadedMotoServer

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
ThreadedMotoServer(ip_address="0.0.0.0", port=3900, verbose=False).start()
names = {"aws_access_key_id": "id", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
boto3.client("s3", endpoint_url="http://127.0.0.1:3900", **names).create_bucket(Bucket="belljar")
open("/tmp/ready", "w").close()
signal.sigwait({signal.SIGTERM})
"""


def run(*command: Any, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done


def services(engine: str) -> str:
    """Makes the image of Postgres and S3, once. Returns its name."""
    if run(engine, "image", "inspect", SERVICES, check=False).returncode == 0:
        return SERVICES
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / "services.tar"
    if not archive.exists():
        print("== making an image of Postgres and an S3 server; this takes a minute", flush=True)
        pip = f"{sys.executable} -m pip install --quiet --disable-pip-version-check --only-binary :all:"
        version = '$(chroot "$1" python3 -c \'import sys; print("%d.%d" % sys.version_info[:2])\')'
        moto = f'{pip} --python-version {version} --target "$1/opt/moto" "moto[s3]" flask flask-cors'
        release = "$(. /etc/os-release && echo $VERSION_CODENAME)"
        made = archive.with_suffix(".partial")
        script = (
            "mmdebstrap --quiet --variant=minbase --dpkgopt=force-unsafe-io --include=python3,postgresql "
            f'--customize-hook="$MOTO" {release} - >{made}'
        )
        run("sh", "-euc", script, env={**os.environ, "MOTO": moto})
        made.rename(archive)
    run(engine, "import", "-c", "ENV PYTHONPATH=/opt/moto", archive, SERVICES)
    return SERVICES


def belljar(engine: str, binary: str) -> None:
    """Makes belljar/gateway and belljar/node with the tag `test`, with few Python packages."""
    with tempfile.TemporaryDirectory(prefix="belljar-image-") as directory:
        small = Path(directory) / "belljar"
        run("strip", "-o", small, binary)
        make_image(engine, small, "gateway", TAG)
        # The Python environment is made once; the program in it is the newest.
        base = "belljar/node:test-base"
        if run(engine, "image", "inspect", base, check=False).returncode != 0:
            make_image(engine, small, "node", "test-base")
        container = run(engine, "create", base).stdout.strip()
        run(engine, "cp", small, f"{container}:/usr/local/bin/belljar")
        run(engine, "commit", container, f"belljar/node:{TAG}")
        run(engine, "rm", container)


def make_image(engine: str, binary: Path, name: str, tag: str) -> None:
    environment = {**os.environ, "ENGINE": engine, "TAG": tag, "BELLJAR_PACKAGES": "numpy ipython", "OUT": str(CACHE)}
    done = subprocess.run([ROOT / "scripts" / "make-image", binary, name], env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the image {name} could not be made")
