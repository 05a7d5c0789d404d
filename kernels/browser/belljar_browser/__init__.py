"""Belljar's browser service: Chromium, driven over its debugging pipe from inside the sandbox.

    service     the loop: actions from the guest, events from Chromium, idle shutdown
    actions     the actions and their results
    browser     the life cycle of Chromium: start, idle stop, restore, crash; its tabs
    tab         one tab: navigation, waiting, elements, input
    downloads   downloads that pages start, and downloads by address
    snapshot    the accessibility tree as text, with a `ref` for every usable element
    keys        keyboard events
    task        tasks in natural language, in a separate process with browser-use
    pipe        messages to and from Chromium
    process     the program: its path, its start, its end
    errors      the errors, each with a code

The host does not trust this process: its output is JSON of limited size. It uses only the standard library, so that it
works with the Python of any image.
"""
