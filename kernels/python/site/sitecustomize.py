"""Where pip puts packages, and where a Python finds them: PYTHONPATH leads every Python of a sandbox here first.

The Python of an image is read-only, so packages that a session installs for it go to `/session/.local`. A virtual
environment that the session made can be written to: it keeps its packages to itself, as anywhere.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PREFIX = "/session/.local"
# Options of pip that say themselves where packages go.
_PLACES = ("--user", "--target", "--prefix", "--root")


def _prepare() -> None:
    at = sys.path.index(_HERE) if _HERE in sys.path else 0
    # There is nothing to import here.
    sys.path[:] = [path for path in sys.path if path != _HERE]
    if os.access(sys.prefix, os.W_OK):
        # Set by an earlier Python, for itself.
        if os.environ.get("PIP_PREFIX") == _PREFIX:
            del os.environ["PIP_PREFIX"]
        return
    packages = f"{_PREFIX}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    sys.path[:] = [path for path in sys.path if path != packages]
    sys.path.insert(at, packages)
    if os.path.isdir(packages):
        import site

        # Not for the path, which is there, but for the `.pth` files of packages.
        site.addsitedir(packages)
    if not any(word == "-t" or word.startswith(_PLACES) for word in sys.orig_argv):
        os.environ.setdefault("PIP_PREFIX", _PREFIX)


def _go_on() -> None:
    """Runs the `sitecustomize` that would have been found without this one."""
    # Every Python that starts comes here, so nothing is imported before it is needed.
    finder = next((finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder"), None)
    spec = finder.find_spec("sitecustomize", sys.path) if finder is not None else None
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_prepare()
_go_on()
