#!/bin/sh
# Sets up this machine and starts a server: scripts/quickstart.sh [ADDRESS:PORT]
#
# It listens at 127.0.0.1:5000 unless told (or at BELLJAR_LISTEN), speaks the calls of simple-sandbox and all others,
# and uses the belljar of BELLJAR_BINARY, of the PATH, or of this tree, which it builds if there is none. Run twice, it
# does what is still to be done. BELLJAR_BACKEND=docker makes sandboxes from containers.
set -eu

case "${1:-}" in
-h | --help)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
    exit 0
    ;;
esac
tree=$(cd "$(dirname "$0")/.." && pwd)
say() { printf '== %s\n' "$*" >&2; }

say "1/4 the program"
belljar=${BELLJAR_BINARY:-$(command -v belljar || echo "$tree/target/release/belljar")}
if [ ! -x "$belljar" ]; then
    # Installs the packages that it needs, or says which.
    make -C "$tree" build >&2
fi
"$belljar" --version >&2

say "2/4 what this machine can enforce"
"$belljar" doctor >&2 || say "some of it cannot be enforced here; what, and what to do, stands above"

if [ "${BELLJAR_BACKEND:-}" = docker ]; then
    say "3/4 a container engine, and an image with the usual packages"
    "$tree/scripts/prepare-docker" >&2
    docker image inspect "${SANDBOX_IMAGE:-belljar/sandbox:latest}" >/dev/null 2>&1 || "$belljar" image build >&2
else
    say "3/4 the Python environment of sandboxes"
    if "$belljar" run -c 'import numpy, pandas' >/dev/null 2>&1; then
        say "it is there"
    else
        "$belljar" setup >&2
    fi
fi

say "4/4 the server"
exec "$belljar" serve --listen "${1:-${BELLJAR_LISTEN:-127.0.0.1:5000}}"
