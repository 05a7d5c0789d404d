"""Belljar's Python kernel: what executes the user's cells inside a sandbox.

    wire        frames between the kernel and the guest
    kernel      the loop: one exec after another, and what a forked child may not do
    memory      what is not used any more goes back to the system
    interrupts  SIGINT reaches user code only
    cells       source to code objects: last expression, top-level await, linecache
    aio         the event loop: top-level await, tasks that go on between cells
    streams     stdin, stdout and stderr, repaired before every exec
    inputs      input(), sys.stdin and getpass() of cells that take input
    spill       large values of an idle kernel go to disk and come back
    state       what the variables are, without running any user code
    display     values to mime bundles, and `display()`
    tracebacks  exceptions as the user wants to read them
    importhooks code that runs when, and only when, the user imports a certain module
    figures     matplotlib figures become images (mpl_backend is the backend module)
    magics      the IPython shell behind `%magic`, `!command` and `?help`
    frozen      the kernel as files, and files as the kernel
    preloaded   an interpreter with packages loaded, whose memory kernels begin with
    renewal     what such a kernel draws anew
    seal        system calls that Python has no function for
    zygote      in a container: the preloaded process that forks kernels

Two rules shape the code. Everything that is not needed by `x = 1` is imported when it is first needed,
because start-up time is paid by every session; for the same reason `typing` is imported by type checkers only,
which read a module's `TYPE_CHECKING` as true whatever it says. And everything that can run user code (a `__repr__`, a
`__str__`, a figure's `draw`) runs below `interrupts.call_user`, so that it can be interrupted.
"""
