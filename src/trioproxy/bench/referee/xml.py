"""Elements of XML, SVG and HTML, built as trees so that nothing is ever forgotten to be escaped.

Lives here: one helper for adding elements, and what XML cannot carry. Does not live here: any document.
"""

from __future__ import annotations

import re
from typing import Final, Literal
from xml.etree import ElementTree

Element = ElementTree.Element

_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 does not allow, written as a reference or not: what a proxy printed may have it."""


def clean(text: str) -> str:
    """Text that XML can carry: the rest is replaced."""
    return _FORBIDDEN.sub("\ufffd", text)


def add(parent: Element, tag: str, text: str | None = None, /, **attributes: object) -> Element:
    """Add an element. ``class_`` stands for ``class``, and other underscores for hyphens; floats are shortened."""
    child = ElementTree.SubElement(parent, tag, {_name(name): _value(value) for name, value in attributes.items()})
    if text is not None:
        child.text = clean(text)
    return child


def serialize(root: Element, method: Literal["xml", "html"]) -> bytes:
    """The whole tree in UTF-8; as XML with a declaration."""
    text: bytes = ElementTree.tostring(root, encoding="utf-8", method=method, xml_declaration=method == "xml")
    return text + b"\n"


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else clean(str(value))
