"""Writes the reference of the gRPC API into its page, from the protos and their comments: a hook of MkDocs.

``<!-- protos NAME… -->`` in a page is replaced by the services, messages and enums of these files of ``persist.v1``.
"""

import functools
import re
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2] / "protos"
PACKAGE = ".persist.v1."
MARK = re.compile(r"<!-- protos ([\w ]+) -->")

# Numbers of fields in descriptor.proto, of which paths in a file are made.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
FIELDS, NESTED, NESTED_ENUMS = 2, 3, 4
SYNTAX, VALUES, METHODS = 12, 2, 2


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with what it asks for in it."""
    return MARK.sub(lambda found: "\n".join(reference(found.group(1).split())), markdown)


def reference(names: Sequence[str]) -> Iterator[str]:
    """Markdown of these files: first all services, then what they send and receive."""
    described = [_File(descriptors()[f"persist/v1/{name}.proto"]) for name in names]
    for file in described:
        yield from file.services()
    for file in described:
        yield from file.types()


@functools.cache
def descriptors() -> dict[str, Any]:
    """Every file of the API, with comments, by its path. Needs no network: the compiler is in grpcio-tools."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "descriptors"
        inputs = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("persist/v1/*.proto"))]
        code = protoc.main(
            [
                "protoc",
                f"-I{ROOT}",
                f"-I{files('grpc_tools') / '_proto'}",
                "--include_source_info",
                f"--descriptor_set_out={out}",
                *inputs,
            ]
        )
        if code:
            raise RuntimeError("protoc failed: its message is above")
        return {file.name: file for file in FileDescriptorSet.FromString(out.read_bytes()).file}


class _File:
    def __init__(self, file: Any) -> None:
        self._file = file
        self._comments = {
            tuple(each.path): each.leading_comments or each.trailing_comments for each in file.source_code_info.location
        }
        self._heads = {
            tuple(each.path): "\n\n".join([*each.leading_detached_comments, each.leading_comments])
            for each in file.source_code_info.location
        }

    def services(self) -> Iterator[str]:
        for at, service in enumerate(self._file.service):
            yield f"\n## {service.name}\n\n{prose(self._comments.get((SERVICES, at), ''))}\n"
            yield f"{prose(self._heads.get((SYNTAX,), ''))}\n"
            yield "| method | |\n|---|---|"
            for nth, method in enumerate(service.method):
                takes = _reference(method.input_type, "stream " if method.client_streaming else "")
                gives = _reference(method.output_type, "stream " if method.server_streaming else "")
                says = cell(self._comments.get((SERVICES, at, METHODS, nth), ""))
                yield f"| `{method.name}` | {takes} → {gives}<br>{says} |"

    def types(self) -> Iterator[str]:
        yield f"\n## {Path(self._file.name).name}\n"
        if not self._file.service:
            yield f"{prose(self._heads.get((SYNTAX,), ''))}\n"
        for at, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, (ENUMS, at), "")
        for at, message in enumerate(self._file.message_type):
            yield from self._message(message, (MESSAGES, at), "")

    def _message(self, message: Any, path: tuple[int, ...], owner: str) -> Iterator[str]:
        name = f"{owner}{message.name}"
        yield f"\n### {name}\n\n{prose(self._comments.get(path, ''))}\n"
        if message.field:
            yield "| field | number | type | |\n|---|---:|---|---|"
        entries = {each.name: each for each in message.nested_type if each.options.map_entry}
        for nth, field in enumerate(message.field):
            says = cell(self._comments.get((*path, FIELDS, nth), ""))
            choice = ""
            if field.HasField("oneof_index") and not field.proto3_optional:
                choice = f"one of `{message.oneof_decl[field.oneof_index].name}`: "
            yield f"| `{field.name}` | {field.number} | {_kind(field, entries)} | {choice}{says} |"
        for nth, enum in enumerate(message.enum_type):
            yield from self._enum(enum, (*path, NESTED_ENUMS, nth), f"{name}.")
        for nth, nested in enumerate(message.nested_type):
            if nested.name not in entries:
                yield from self._message(nested, (*path, NESTED, nth), f"{name}.")

    def _enum(self, enum: Any, path: tuple[int, ...], owner: str) -> Iterator[str]:
        yield f"\n### {owner}{enum.name}\n\n{prose(self._comments.get(path, ''))}\n"
        yield "| value | number | |\n|---|---:|---|"
        for nth, value in enumerate(enum.value):
            yield f"| `{value.name}` | {value.number} | {cell(self._comments.get((*path, VALUES, nth), ''))} |"


def _kind(field: Any, entries: dict[str, Any]) -> str:
    last = field.type_name.rpartition(".")[2]
    if last in entries:
        key, value = entries[last].field
        return f"map of {_kind(key, {})} to {_kind(value, {})}"
    name = field.type_name
    kind = _reference(name) if name else f"`{field.Type.Name(field.type).removeprefix('TYPE_').lower()}`"
    if field.label == field.LABEL_REPEATED:
        return f"repeated {kind}"
    return f"optional {kind}" if field.proto3_optional else kind


def _reference(name: str, before: str = "") -> str:
    """A link to a message of the API; the name alone of one that is from elsewhere."""
    if not name.startswith(PACKAGE):
        return f"{before}`{name.lstrip('.')}`"
    short = name.removeprefix(PACKAGE)
    return f"{before}[{short}](#{short.lower().replace('.', '')})"


def prose(comment: str) -> str:
    """A comment as paragraphs, lists and, where its lines are indented, preformatted text."""
    out: list[str] = []
    before = ""
    for line in (line.removeprefix(" ").replace("<", "&lt;") for line in comment.strip("\n").splitlines()):
        kind = "list" if re.match(r" *\* ", line) else "as it is" if line.startswith("  ") else "text"
        if kind == "as it is" and before == "list":
            kind = "list"  # a line of an item
        if out and out[-1] and kind != before and "text" in (kind, before):
            out.append("")
        out.append(f"  {line.replace('&lt;', '<')}" if kind == "as it is" else line)
        before = kind
    return "\n".join(out)


def cell(comment: str) -> str:
    """A comment in one line of a table."""
    return " ".join(comment.split()).replace("|", "\\|").replace("<", "&lt;")
