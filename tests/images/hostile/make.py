"""Makes a hostile image, or a hostile package, out of payload.py.

    make.py tree DIRECTORY CONFIG    the root of an image: this machine's Python, every way in used
    make.py wheel DIRECTORY CONFIG   a package that pip installs; prints its path

CONFIG is the JSON that the payload reads: what the host has that the payload shall look for. An image gets its payload
to run in four ways: by its interpreter, which is a script, by a `.pth` file, by `sitecustomize`, and by a module that
the interpreter is told to import when the image is loaded.
"""

import base64
import glob
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PAYLOAD = (HERE / "payload.py").read_text()
CALL = "import hostile_payload; hostile_payload.look({!r})\n"
# Behind whatever the module is otherwise; a module of the preload list.
PRELOADED = CALL.format("preload")
INTERPRETER = """#!{real}
import json, os, sys
sys.path.insert(0, {packages!r})
import hostile_payload
hostile_payload.look("interpreter")
for outcome in getattr(sys, "hostile", [])[-1:]:
    outcome["argv"] = sys.argv
os.environ["HOSTILE_BEFORE"] = json.dumps(getattr(sys, "hostile", []))
os.execv({real!r}, [{link!r}, *sys.argv[1:]])
"""


def modules(config):
    """The files of the package, by their names below site-packages."""
    return {
        "hostile_payload.py": PAYLOAD,
        "hostile_config.json": config,
        "hostile_preloaded.py": PRELOADED,
        "sitecustomize.py": CALL.format("sitecustomize"),
        "hostile.pth": CALL.format("pth"),
    }


def tree(directory, config):
    python = pathlib.Path("/usr/bin/python3").resolve()
    version = python.name
    stdlib = pathlib.Path("/usr/lib") / version
    root = pathlib.Path(directory)
    unused = shutil.ignore_patterns(
        "test", "tests", "idlelib", "lib2to3", "pydoc_data", "distutils", "config-*", "sitecustomize*"
    )
    shutil.copytree(stdlib, root / stdlib.relative_to("/"), ignore=unused, symlinks=True)
    programs = [python, *glob.glob(f"{stdlib}/lib-dynload/*.so")]
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    libraries = {word for word in listed.split() if word.startswith("/") and ".so" in word and not word.endswith(":")}
    for library in sorted(libraries - set(map(str, programs))):
        place = root / library.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, place)
    binaries = root / "usr/bin"
    binaries.mkdir(parents=True, exist_ok=True)
    real = binaries / f"{version}-real"
    shutil.copy(python, real)
    packages = root / "usr/lib/python3/dist-packages"
    packages.mkdir(parents=True)
    for name, text in modules(config).items():
        (packages / name).write_text(text)
    link = binaries / "python3"
    real, packages = f"/usr/bin/{version}-real", "/usr/lib/python3/dist-packages"
    link.write_text(INTERPRETER.format(real=real, link="/usr/bin/python3", packages=packages))
    link.chmod(0o755)


def wheel(directory, config):
    files = modules(config)
    info = "hostile-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    path = os.path.join(directory, "hostile-1.0-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, text)
    print(path)


if __name__ == "__main__":
    {"tree": tree, "wheel": wheel}[sys.argv[1]](*sys.argv[2:])
