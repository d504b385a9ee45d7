"""The table that takes eight brackets a step agrees with counting one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trioproxy.apis.brackets import stays_between


@given(st.text("[]", max_size=60), st.integers(1, 30), st.integers(1, 40))
def test_agrees_with_counting(text: str, depth: int, limit: int) -> None:
    depths = [depth + text[:i].count("[") - text[:i].count("]") for i in range(1, len(text) + 1)]
    inside = all(0 < d <= limit for d in depths)
    assert stays_between(text.encode(), text.count("]"), depth, limit) == (inside or (not text and depth <= limit))


def test_is_exact_at_both_ends() -> None:
    for n in range(1, 40):
        assert stays_between(b"]" * n + b"[" * n, n, n + 1, 99)
        assert not stays_between(b"]" * n + b"[" * n, n, n, 99)
        assert stays_between(b"[" * n + b"]" * n, n, 1, n + 1)
        assert not stays_between(b"[" * n + b"]" * n, n, 1, n)
