"""Belljar's browser service: Chromium, driven over its debugging pipe from inside the sandbox.

    service     the loop: actions from the guest, events from Chromium, the time to stop
    actions     what can be asked, and what is answered
    browser     Chromium's life: started on first use, stopped when idle, found again or lost; its tabs
    tab         one tab: navigation, waiting, elements, input
    downloads   files that pages hand out, and those that are asked for by address
    snapshot    the accessibility tree as text, with a name for everything that can be used
    keys        what keyboards send
    task        a task in natural language: a process of its own, with browser-use
    pipe        messages to and from Chromium
    process     the program: where it is, how it is started, how it ends
    errors      what can go wrong, each with a code of its own

Nothing here is believed by the host: what comes out is JSON of bounded size. Only the standard library is used, so that
any Python of any image will do.
"""
