"""Every sentence that the list of sentences has is quoted by the test that it names."""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from unit.design_sentences import SECTIONS, SENTENCES

TESTS = Path(__file__).parent.parent


@cache
def quotes(path: str) -> dict[str, str]:
    """What the tests of a file say of themselves, each on one line."""
    parsed = ast.parse((TESTS / path).read_text())
    found = [each for each in ast.walk(parsed) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {each.name: " ".join((ast.get_docstring(each) or "").split()) for each in found}


@pytest.mark.parametrize("sentence", SENTENCES, ids=[each.partition("::")[2] for each in SENTENCES.values()])
def test_a_sentence_is_quoted_by_its_test(sentence: str) -> None:
    path, _, test = SENTENCES[sentence].partition("::")
    assert test.startswith("test_")
    assert sentence in quotes(path)[test]


@pytest.mark.parametrize(("sentences", "text"), SECTIONS)
def test_no_sentence_of_a_section_is_left_out(sentences: Iterable[str], text: str) -> None:
    assert hashlib.sha256(" ".join(sentences).encode()).hexdigest() == text
