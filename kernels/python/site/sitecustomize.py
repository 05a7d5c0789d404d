"""Sets where pip installs packages and where Python finds them. PYTHONPATH makes every Python of a sandbox load this.

The Python of an image is read-only, so packages that a session installs for it go to `/session/.local`. A virtual
environment of the session is writable and has its own packages, as usual.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PREFIX = "/session/.local"
# Options of pip that set the directory of packages.
_PLACES = ("--user", "--target", "--prefix", "--root")


def _prepare() -> None:
    at = sys.path.index(_HERE) if _HERE in sys.path else 0
    # This directory has no modules to import.
    sys.path[:] = [path for path in sys.path if path != _HERE]
    if os.access(sys.prefix, os.W_OK):
        # A parent Python has set it for itself.
        if os.environ.get("PIP_PREFIX") == _PREFIX:
            del os.environ["PIP_PREFIX"]
        return
    packages = f"{_PREFIX}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    sys.path[:] = [path for path in sys.path if path != packages]
    sys.path.insert(at, packages)
    if os.path.isdir(packages):
        import site

        # For the `.pth` files of packages; the path itself is already set.
        site.addsitedir(packages)
    if not any(word == "-t" or word.startswith(_PLACES) for word in sys.orig_argv):
        os.environ.setdefault("PIP_PREFIX", _PREFIX)


def _run_next_sitecustomize() -> None:
    """Runs the `sitecustomize` that would have been found without this one."""
    # Every Python runs this at its start, so it imports only what it needs.
    finder = next((finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder"), None)
    spec = finder.find_spec("sitecustomize", sys.path) if finder is not None else None
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_prepare()
_run_next_sitecustomize()
