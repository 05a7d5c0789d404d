"""The accessibility tree of a page as text, with a `ref` for every usable element.

    - heading "Shop" [level=1]
    - link "Pears" [ref=e31] -> http://localhost:8000/pears
    - textbox "Search" [ref=e40]: "apples"
"""

from __future__ import annotations

from typing import Any

# Roles without text of their own; only their children are shown.
PASSED = {
    "generic",
    "none",
    "presentation",
    "InlineTextBox",
    "LabelText",
    "LayoutTable",
    "LineBreak",
    "ListMarker",
    "MenuListPopup",
}
USABLE = {
    "button",
    "checkbox",
    "combobox",
    "ComboBoxSelect",
    "link",
    "listbox",
    "menuitem",
    "menuitemcheckbox",
    "menuitemradio",
    "option",
    "radio",
    "searchbox",
    "slider",
    "spinbutton",
    "switch",
    "tab",
    "textbox",
    "treeitem",
    "DisclosureTriangle",
    "DateTime",
    "Date",
    "InputTime",
    "ColorWell",
}
SHOWN_STATES = ("checked", "disabled", "expanded", "level", "pressed", "required", "selected", "invalid", "focused")
MAX_NAME = 300
MAX_DEPTH = 200


def render(nodes: list[dict[str, Any]], max_chars: int) -> tuple[str, int]:
    """The tree as text, and how many lines were left out."""
    by_id = {node["nodeId"]: node for node in nodes}
    lines: list[str] = []

    def walk(node: dict[str, Any], depth: int, parent_name: str) -> None:
        if depth > MAX_DEPTH:
            return
        role, name = _value(node, "role"), _value(node, "name")[:MAX_NAME]
        shown = parent_name
        inner = depth
        if not node.get("ignored") and role not in PASSED and not (role == "StaticText" and name in ("", parent_name)):
            if role == "RootWebArea":
                shown = name
            elif role == "StaticText":
                if name not in parent_name:
                    lines.append(f"{'  ' * depth}- text: {name}")
            else:
                lines.append("  " * depth + _line(node, role, name))
                inner, shown = depth + 1, f"{name} {_value(node, 'value')}"
        for child in node.get("childIds", []):
            if child in by_id:
                walk(by_id[child], inner, shown)

    roots = [node for node in nodes if not node.get("parentId")]
    for root in roots:
        walk(root, 0, "")
    kept, size = [], 0
    for line in lines:
        size += len(line) + 1
        if size > max_chars:
            break
        kept.append(line)
    return "\n".join(kept), len(lines) - len(kept)


def _line(node: dict[str, Any], role: str, name: str) -> str:
    properties = {item["name"]: item.get("value", {}).get("value") for item in node.get("properties", [])}
    line = f"- {role[0].lower() + role[1:]}"
    if name:
        line += f' "{name}"'
    for state in SHOWN_STATES:
        value = properties.get(state)
        if value is not None and value is not False and value not in ("false", ""):
            line += f" [{state}]" if value is True or value == "true" else f" [{state}={value}]"
    backend = node.get("backendDOMNodeId")
    if backend is not None and (role in USABLE or properties.get("focusable") or properties.get("editable")):
        line += f" [ref=e{backend}]"
    value = _value(node, "value")
    if value and value != name:
        line += f': "{value[:MAX_NAME]}"'
    if url := properties.get("url"):
        line += f" -> {str(url)[:MAX_NAME]}"
    return line


def _value(node: dict[str, Any], name: str) -> str:
    value = node.get(name, {}).get("value", "")
    return " ".join(str(value).split()) if value is not None else ""
