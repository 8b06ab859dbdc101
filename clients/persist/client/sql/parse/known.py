"""Nodes of sqlglot, read whole: what a statement says and nothing here knows of is refused, and never left out.

sqlglot accepts more than any one database does (DELETE … LIMIT), and keeps it where it is not looked for.
"""

from typing import TypeVar

from persist.client.sql.errors import SqlNotSupported
from persist.extras import extra

with extra("sql"):
    from sqlglot import exp

E = TypeVar("E", bound="exp.Expr")


def is_only(node: exp.Expr, *known: str) -> bool:
    """Whether nothing is said in a node but what these of its arguments say."""
    return not any(value for name, value in node.args.items() if name not in known)


def only(node: exp.Expr, kind: type[E], *known: str, hint: str) -> E:
    """The node, of which nothing but these arguments is used. Raises SqlNotSupported, with what else there is."""
    if isinstance(node, kind) and is_only(node, *known):
        return node
    strange = sorted(name.rstrip("_") for name, value in node.args.items() if value and name not in known)
    said = ", ".join(strange) if isinstance(node, kind) else node.key
    raise SqlNotSupported("this clause is not supported here", hint=hint, clause=said)
