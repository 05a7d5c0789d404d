"""The entry point of the Python kernel and its helpers inside a sandbox.

    python -I main.py kernel --fd N [--font-cache DIR]    one kernel, started directly by the guest
    python -I main.py preloaded --fd N                    an interpreter whose memory kernels start from
    python -I main.py zygote --fd N                       in a container: one that forks kernels

The package next to this file is importable only while this file imports it: the `sys.path` of user code does not
contain our folder, so a user's `wire.py` or `display.py` cannot conflict with ours.
"""

import os
import sys

USAGE = "usage: main.py kernel --fd N [--font-cache DIR] | main.py preloaded|zygote --fd N"


def main(argv: "list[str]") -> None:
    # argparse would take a tenth of the start-up time; two flags do not need it.
    command, flags = argv[0] if argv else "", argv[1:]
    options = dict(zip(flags[::2], flags[1::2]))
    if command not in ("kernel", "preloaded", "zygote") or len(flags) % 2 or not options.get("--fd", "").isdigit():
        sys.exit(USAGE)
    if set(options) - ({"--fd", "--font-cache"} if command == "kernel" else {"--fd"}):
        sys.exit(USAGE)
    fd = int(options["--fd"])

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    try:
        if command == "kernel":
            from belljar_kernel.kernel import run_kernel
        elif command == "preloaded":
            from belljar_kernel.preloaded import run_preloaded
        else:
            from belljar_kernel.zygote import run_zygote
    finally:
        sys.path.remove(here)

    if command == "kernel":
        run_kernel(fd, font_cache=options.get("--font-cache"))
    elif command == "preloaded":
        run_preloaded(fd)
    else:
        run_zygote(fd)


if __name__ == "__main__":
    main(sys.argv[1:])
