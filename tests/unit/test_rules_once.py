"""Rules of timelines and holds are decided in one place each: no other module refuses in their name."""

import ast

from test_tidy import ROOT, SOURCE_ROOTS, STUBS, module_name
from trees import nodes

DECIDES = {
    "MultipleTimelines": "persist.core.time.collections",
    "HoldOverdue": "persist.core.time.hold",
    "BelowHold": "persist.core.time.holds",
    "SourceQuarantined": "persist.core.source.source_timeline",
}
"""An error, and the only module that makes one."""


def test_each_rule_is_decided_in_one_place() -> None:
    made = {
        (called, module)
        for root in SOURCE_ROOTS
        for path in (ROOT / root).rglob("*.py")
        if STUBS not in path.parents
        for module in [module_name(path)]
        for node in nodes(path)
        if isinstance(node, ast.Call) and (called := _name(node.func)) in DECIDES
    }
    assert made == set(DECIDES.items())


def _name(called: ast.expr) -> str:
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
