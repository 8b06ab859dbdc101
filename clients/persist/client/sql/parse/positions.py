"""Where a part of a query stands in its text."""

from persist.extras import extra

with extra("sql"):
    from sqlglot import exp


def where(node: exp.Expr) -> dict[str, int]:
    """Line and column, as details of an error; empty where they are not known."""
    for each in (node, *node.find_all(exp.Identifier)):
        meta = each.meta
        if "line" in meta and "col" in meta:
            width = int(meta.get("end", 0)) - int(meta.get("start", 0))
            return {"line": int(meta["line"]), "column": max(int(meta["col"]) - width, 1)}
    return {}
