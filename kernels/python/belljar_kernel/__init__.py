"""Belljar's Python kernel, which executes the user's cells inside a sandbox.

    wire        frames between the kernel and the guest
    kernel      the loop: one exec after another, and the rules for forked children
    memory      returns unused memory to the system
    interrupts  delivers SIGINT to user code only
    cells       compiles source: last expression, top-level await, linecache
    aio         the event loop: top-level await, tasks that run between cells
    streams     stdin, stdout and stderr, repaired before every exec
    inputs      input(), sys.stdin and getpass() of cells that take input
    spill       moves large values of an idle kernel to disk and back
    state       describes the variables, without running any user code
    display     converts values to MIME bundles; `display()`
    tracebacks  formats exceptions without the kernel's own frames
    importhooks code that runs when, and only when, the user imports a certain module
    figures     shows matplotlib figures as images (mpl_backend is the backend module)
    magics      the IPython shell behind `%magic`, `!command` and `?help`
    snapshot    writes a snapshot of the kernel, and loads one
    preloaded   an interpreter with packages loaded, whose memory kernels start from
    renewal     gives such a kernel its own environment and random seeds
    seal        system calls that Python has no function for
    zygote      in a container: the preloaded process that forks kernels

Two rules shape the code. Modules that `x = 1` does not need are imported when they are first used, because every
session pays for start-up time; for the same reason only type checkers import `typing`: they treat the name
`TYPE_CHECKING` as true. And everything that can run user code (a `__repr__`, a `__str__`, a figure's `draw`) is called
by `interrupts.call_user`, so that it can be interrupted.
"""
