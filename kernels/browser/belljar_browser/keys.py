"""Keyboard events for keys and combinations such as `Enter`, `a` or `Control+Shift+K`."""

from __future__ import annotations

from typing import Any

from belljar_browser.errors import Invalid

MODIFIERS = {"alt": 1, "control": 2, "ctrl": 2, "meta": 4, "command": 4, "shift": 8}

# By name: the code of the key (as on Windows) and the text that it types.
NAMED: dict[str, tuple[int, str]] = {
    "Enter": (13, "\r"),
    "Tab": (9, ""),
    "Escape": (27, ""),
    "Backspace": (8, ""),
    "Delete": (46, ""),
    "Insert": (45, ""),
    "Home": (36, ""),
    "End": (35, ""),
    "PageUp": (33, ""),
    "PageDown": (34, ""),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
    **{f"F{number}": (111 + number, "") for number in range(1, 13)},
}

ALIASES = {
    "return": "Enter",
    "esc": "Escape",
    "del": "Delete",
    "left": "ArrowLeft",
    "up": "ArrowUp",
    "right": "ArrowRight",
    "down": "ArrowDown",
    "space": " ",
}

# Editing commands for Control and a letter, which Chromium does not perform for synthetic events.
COMMANDS = {"a": "selectAll", "c": "copy", "v": "paste", "x": "cut", "z": "undo", "y": "redo"}


def events(chord: str) -> list[dict[str, Any]]:
    """The events for a combination: key down, and key up."""
    # `+` itself is a key.
    is_plain = len(chord) > 1 and not chord.endswith("+")
    *held, name = chord.split("+") if is_plain else [*chord[:-1].split("+"), chord[-1:]]
    held = [part for part in held if part]
    modifiers = 0
    for modifier in held:
        if modifier.strip().lower() not in MODIFIERS:
            raise Invalid(f"key: `{modifier}` is none of Alt, Control, Meta, Shift")
        modifiers |= MODIFIERS[modifier.strip().lower()]
    name = name if len(name) == 1 else name.strip()
    name = ALIASES.get(name.lower(), name)
    known = next((own for own in NAMED if own.lower() == name.lower()), None)
    if known is not None:
        code, text = NAMED[known]
        key = {"key": known, "code": known, "windowsVirtualKeyCode": code}
    elif len(name) == 1:
        text = name.upper() if modifiers & 8 else name
        key = {"key": text, "code": _code(name)}
        if name.upper().isascii() and (name.isalnum() or name == " "):
            key["windowsVirtualKeyCode"] = ord(name.upper())
    else:
        raise Invalid(f"key: `{name}` is not a key; expected a character, or one of {', '.join(NAMED)}, Space")
    if modifiers & ~8:
        text = ""
    down = {"type": "keyDown" if text else "rawKeyDown", "modifiers": modifiers, **key}
    if text:
        down["text"] = text
    if modifiers & 2 and name.lower() in COMMANDS:
        down["commands"] = [COMMANDS[name.lower()]]
    return [down, {"type": "keyUp", "modifiers": modifiers, **key}]


def _code(name: str) -> str:
    if name.isascii() and name.isalpha():
        return f"Key{name.upper()}"
    if name.isascii() and name.isdigit():
        return f"Digit{name}"
    return "Space" if name == " " else ""
