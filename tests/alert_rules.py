"""Files of rules for Prometheus, held to what is exported: an alert on anything else is silent for ever."""

import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "deploy" / "prometheus"
METRIC = re.compile(r"\bpersist_[a-z_]+")
EXPRESSION = re.compile(r"^ +expr: (?:\|\n)?((?:.+\n)+?) +(?:for|labels):", re.MULTILINE)


def rules(name: str) -> str:
    """The text of a file of rules."""
    return (FOLDER / f"{name}.rules.yml").read_text()


def expressions(text: str) -> list[str]:
    """Of each alert."""
    found = EXPRESSION.findall(text)
    assert len(found) == text.count("- alert:") == len(set(re.findall(r"- alert: (\w+)", text)))
    return found


def check_expression(expression: str, known: Mapping[str, set[str]]) -> None:
    """``known``: the labels of each metric that is exported."""
    names = METRIC.findall(expression)
    assert names
    assert set(names) <= known.keys()
    every = set.intersection(*(known[each] for each in names))
    for given in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        wanted = {label.strip() for label in given.split(",")}
        assert wanted <= every or wanted <= known[names[0]]
    for name, given in re.findall(r"(persist_[a-z_]+)\{([^}]*)\}", expression):
        assert set(re.findall(r"(\w+)!?=", given)) <= known[name]


def check_texts(text: str) -> None:
    """What an alert says is of labels that its expression keeps."""
    for rule in text.split("- alert: ")[1:]:
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule))))
        assert set(re.findall(r"\$labels\.(\w+)", rule)) <= kept
