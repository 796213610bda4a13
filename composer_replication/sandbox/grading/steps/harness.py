"""Names of the test frameworks: what judges, expects or generates in a test is not the project's.

The text of this module runs inside a sandbox, in front of that of `steps.recorder`.
"""

from __future__ import annotations

from typing import Any

HARNESS = frozenset({"pytest", "_pytest", "unittest", "hypothesis", "mock"})
"""Modules whose functions judge or generate: what they do is not the project's."""
JUDGES = {
    "assertEqual": "eq", "assertNotEqual": "ne", "assertIn": "in", "assertNotIn": "not in", "assertLess": "lt",
    "assertLessEqual": "le", "assertGreater": "gt", "assertGreaterEqual": "ge", "assertListEqual": "eq", "assertDictEqual": "eq",
    "assertSetEqual": "eq", "assertTupleEqual": "eq", "assertSequenceEqual": "eq", "assertCountEqual": "eq",
    "assertIs": "is_", "assertIsNot": "is_not", "assertAlmostEqual": "eq", "assertTrue": "truth", "assertFalse": "truth",
}  # fmt: skip
"""Methods of unittest -> the operator by which they look at their operands."""
EXPECTING = frozenset({"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns"})


def is_case(value: Any) -> bool:
    """Return whether a class is a unittest.TestCase, without importing unittest."""
    return isinstance(value, type) and any(c.__name__ == "TestCase" and c.__module__ == "unittest.case" for c in value.__mro__)
