"""A report as JUnit XML, which every CI shows: each case and each requirement a test case.

Lives here: the form. Does not live here: what failed (the documents say so).
"""

from __future__ import annotations

from xml.etree import ElementTree

from .document import Check, Document
from .xml import Element, add, serialize


def render(document: Document) -> bytes:
    """The whole report, in UTF-8."""
    root = Element("testsuites", {"name": "trioproxy bench"})
    checks = document.checks
    suite = add(
        root,
        "testsuite",
        name=document.title,
        tests=len(checks),
        failures=sum(check.failure is not None for check in checks),
        errors=sum(check.error is not None for check in checks),
        skipped=sum(check.skipped is not None for check in checks),
        time=f"{sum(check.seconds for check in checks):.3f}",
    )
    properties = add(suite, "properties")
    for name, value in document.facts:
        add(properties, "property", name=name, value=value)
    for check in checks:
        _case(suite, check)
    ElementTree.indent(root)
    return serialize(root, "xml")


def _case(suite: Element, check: Check) -> None:
    case = add(suite, "testcase", classname=check.group, name=check.name, time=f"{check.seconds:.3f}")
    for tag, text in (("failure", check.failure), ("error", check.error), ("skipped", check.skipped)):
        if text is not None:
            add(case, tag, None if tag == "skipped" else text, message=text.partition("\n")[0])
