"""Delivers SIGINT to user code, and only to user code.

A flag for "user code is running" cannot be cleared atomically: a second SIGINT may raise just before the statement that
clears it. The stack is reliable: `call_user` has either returned or not. So the handler inspects the interrupted stack:

    ... user frames ... call_user ...          raise KeyboardInterrupt
    ... Channel.send ... call_user ...         remember it; raised as soon as the frame has been sent
    ... Channel.absorb ... call_user ...       remember it; raised as soon as the frame has been read
    kernel code, an exec is about to start     remember it; `call_user` raises at once
    ... user frames ... call_background ...    raise KeyboardInterrupt if the guest waits for us: a task of an earlier
                                               exec blocks the next one. Otherwise ignore
    kernel code otherwise (late, or idle)      ignore

Python runs signal handlers in the main thread only, between two bytecodes, and the kernel executes cells in
the main thread, so the frame the handler is given is always the right one.
"""

from __future__ import annotations

# Not `signal`: its wrappers convert every argument and result to an enum member, which takes longer than the system
# call.
import _signal
import threading
from types import FrameType

from .wire import Channel

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_pending = False
_starting = False
# While background tasks run: whether the guest waits, and the code whose frame calls the user's callbacks.
_guest_waits: Callable[[], bool] | None = None
_callback: Any = None


def call_user(function: Callable[..., Any], *args: Any) -> Any:
    """Calls `function`; everything that it calls may be interrupted."""
    global _starting
    _starting = False
    if _pending:
        _raise_pending()
    return function(*args)


def call_background(function: Callable[..., Any], guest_waits: Callable[[], bool], callback: Any, *args: Any) -> Any:
    """Calls `function`, which runs the user's callbacks while no exec runs."""
    global _guest_waits, _callback
    _guest_waits, _callback = guest_waits, callback
    return function(*args)


def expect_user_code() -> None:
    """Called when an exec has arrived: from now on a SIGINT is for it, even before its code runs."""
    global _pending, _starting
    _pending = False
    _starting = True


def forget() -> None:
    """Called when an exec has ended: a pending interrupt is dropped."""
    global _pending, _starting
    _starting = _pending = False


def install() -> None:
    """Installs the handler, at the start of the kernel."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    _signal.signal(_signal.SIGINT, _on_sigint)


def reclaim() -> None:
    """Called when user code has ended: removes its SIGINT handler and its alarm.

    `call_user` calls it, so that an exception from a user's handler can still be reported. In the kernel's own code,
    such an exception would end the kernel.
    """
    _signal.setitimer(_signal.ITIMER_REAL, 0)
    if _signal.getsignal(_signal.SIGINT) is not _on_sigint:
        _signal.signal(_signal.SIGINT, _on_sigint)


def is_ours(handler: Callable[..., Any]) -> bool:
    """Whether a signal handler is the kernel's or Python's own."""
    return handler is _on_sigint or handler is _signal.default_int_handler


def send_from_user_code(channel: Channel, head: dict[str, Any], body: bytes) -> None:
    """Sends a frame while user code is on the stack, then raises an interrupt that arrived meanwhile.

    With `wait` in the head it returns when the guest has seen the frame.
    """
    if head.get("wait"):
        channel.exchange(head, body)
    else:
        channel.send(head, body)
    if _pending and threading.current_thread() is threading.main_thread():
        _raise_pending()


def ask_from_user_code(channel: Channel, head: dict[str, Any], body: bytes) -> bytes:
    """Sends a question while user code is on the stack, and waits for the answer without a time limit."""
    line = channel.take_input()
    if line is None:
        send_from_user_code(channel, head, body)
    while line is None:
        channel.wait()
        channel.absorb()
        if _pending:
            _raise_pending()
        line = channel.take_input()
    return line


def _raise_pending() -> None:
    global _pending
    _pending = False
    raise KeyboardInterrupt


def _on_sigint(_signum: int, frame: FrameType | None) -> None:
    global _pending
    sending = in_callback = False
    inner = None
    while frame is not None:
        code = frame.f_code
        if code is _CALL_BACKGROUND:
            if in_callback and not sending and _guest_waits is not None and _guest_waits():
                raise KeyboardInterrupt
            return
        # Not the frame itself: the loop would lose the callback.
        in_callback = in_callback or (code is _callback and inner is not None)
        inner = code
        if code is _CALL_USER:
            if not sending:
                raise KeyboardInterrupt
            _pending = True
            return
        if code is _SEND or code is _EXCHANGE or code is _ABSORB:
            sending = True
        frame = frame.f_back
    if _starting:
        _pending = True


_CALL_USER = call_user.__code__
_CALL_BACKGROUND = call_background.__code__
_SEND = Channel.send.__code__
_EXCHANGE = Channel.exchange.__code__
_ABSORB = Channel.absorb.__code__
