"""No session waits for a lock without end, and none waits for a table while another one of this process holds it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import persist_ingest.sources.postgres as sources
from persist_ingest.sources.postgres.making import slots
from persist_ingest.sources.postgres.rows import held
from persist_ingest.sources.postgres.session import LOCK_SECONDS, UpstreamConnection, lent, let_go

FOLDER = Path(sources.__file__).parent
OPENED = {"UpstreamConnection", "lent", "held", "locked", "connect", "exporter"}
HOLDING = {"held", "locked"}
OF_CATALOGS = {"primary_key", "of", "_check_columns", "TablePiece"}
"""What may be asked for in another session while one holds a table."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(FOLDER.rglob("*.py")):
        yield path.relative_to(FOLDER).as_posix(), ast.parse(path.read_text())


def called(node: ast.AST) -> str:
    """The last name of what a node calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def saying(tree: ast.Module, text: str) -> bool:
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, str) and text in node.value for node in ast.walk(tree)
    )


def test_one_module_says_how_long_a_session_waits_and_two_lock_tables() -> None:
    assert [name for name, tree in trees() if saying(tree, "lock_timeout")] == ["session.py"]
    assert [name for name, tree in trees() if saying(tree, "LOCK TABLE")] == ["making/defining.py", "rows.py"]
    assert {name for name, tree in trees() if "connect" in map(called, ast.walk(tree))} == {"rows.py", "session.py"}


def test_while_a_table_is_held_no_other_session_is_opened_and_one_asks_for_catalogs_alone() -> None:
    places = 0
    for name, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.With) or not any(called(item.context_expr) in HOLDING for item in node.items):
                continue
            places += 1
            for each in (inner for part in node.body for inner in ast.walk(part)):
                assert called(each) not in OPENED - {"of"}, (name, ast.unparse(each))
                if isinstance(each, ast.Call):
                    given = [*each.args, *(keyword.value for keyword in each.keywords)]
                    others = [arg for arg in given if isinstance(arg, ast.Name) and arg.id == "session"]
                    assert not others or called(each) in OF_CATALOGS, (name, ast.unparse(each))
                if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
                    assert each.value.id != "session", (name, ast.unparse(each))
    assert places == 5


@pytest.mark.parametrize("adbc", [True, False])
def test_every_session_has_an_end_to_its_waiting(upstream: Any, adbc: bool) -> None:
    upstream.run("CREATE TABLE items (id int)")
    limit = f"{LOCK_SECONDS:.0f}s"
    asked = "SELECT current_setting('lock_timeout')"
    with UpstreamConnection(upstream.dsn) as session:
        assert session.row(asked) == (limit,)
    with lent(upstream.dsn) as session:
        assert session.row(asked) == (limit,)
    let_go(upstream.dsn)
    with slots.exporter(upstream.dsn) as session:
        assert session.row(asked) == (f"{slots.SLOT_SECONDS}s",)
    with held(upstream.dsn, "public.items", adbc=adbc) as holder:
        assert holder.rows(asked) == [(limit,)]
    with held(upstream.dsn, "public.items", adbc=adbc, lock_seconds=7) as holder:
        assert holder.rows(asked) == [("7s",)]
    with pytest.raises(AssertionError):
        UpstreamConnection(upstream.dsn, lock_seconds=0)
