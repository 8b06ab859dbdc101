"""Writes the reference of the command line into its page, from the commands themselves: a hook of MkDocs.

``<!-- commands -->`` in a page is replaced by a section for every command.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with the commands in it if it asks for them."""
    return markdown.replace(MARK, "\n".join(reference())) if MARK in markdown else markdown


def reference() -> Iterator[str]:
    """Markdown of all commands, in the order of ``persist --help``, after the options that many of them share."""
    import typer.main

    from persist_cli.tree import tree

    root: Any = typer.main.get_command(tree())
    yield "## Options before the command\n"
    yield from _table(root.params)
    shared = _shared(root)
    for panel in dict.fromkeys(each.rich_help_panel for each in shared.values()):
        yield f"\n## {panel.partition(' (')[0]}\n"
        yield from _table([each for each in shared.values() if each.rich_help_panel == panel])
    yield from _group(root, "persist", 2, shared)


def _shared(root: Any) -> dict[str, Any]:
    """Options that come in a panel of their own with many commands, by name, as most of them have them."""
    seen = [each for command in _commands(root) for each in command.params if getattr(each, "rich_help_panel", None)]
    meanings: dict[str, Counter[Any]] = {}
    for each in seen:
        meanings.setdefault(each.opts[0], Counter())[_meaning(each)] += 1
    usual = {name: counted.most_common(1)[0] for name, counted in meanings.items()}
    return {
        name: next(each for each in seen if each.opts[0] == name and _meaning(each) == meaning)
        for name, (meaning, times) in usual.items()
        if times > 1
    }


def _meaning(parameter: Any) -> tuple[Any, ...]:
    return tuple(parameter.opts), parameter.help, _default(parameter), _variable(parameter)


def _commands(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        yield from _commands(command) if hasattr(command, "commands") else [command]


def _group(group: Any, words: str, level: int, shared: Mapping[str, Any]) -> Iterator[str]:
    context: Any = None
    for name in group.list_commands(context):
        command = group.commands[name]
        if command.hidden:
            continue
        yield f"\n{'#' * level} {words} {name}\n"
        yield _text(command.help)
        if hasattr(command, "commands"):
            yield from _group(command, f"{words} {name}", level + 1, shared)
            continue
        yield f"\n```text\n{_usage(f'{words} {name}', command)}\n```\n"
        known = [each for each in command.params if _is_shared(each, shared)]
        yield from _table([each for each in command.params if each not in known])
        if known:
            names = ", ".join(f"`{each.opts[0]}`" for each in known)
            yield f"\nAnd [as with others](#options-before-the-command): {names}."


def _is_shared(parameter: Any, shared: Mapping[str, Any]) -> bool:
    usual = shared.get(parameter.opts[0])
    return usual is not None and _meaning(usual) == _meaning(parameter)


def _usage(words: str, command: Any) -> str:
    arguments = [
        metavar if each.required else f"[{metavar.strip('[]')}]"
        for each in command.params
        if each.param_type_name == "argument"
        for metavar in [each.metavar or each.name.upper()]
    ]
    return " ".join([words, *arguments, "[OPTIONS]"])


def _table(parameters: Iterable[Any]) -> Iterator[str]:
    shown = [each for each in parameters if not getattr(each, "hidden", False)]
    if not shown:
        return
    yield "\n| option | |\n|---|---|"
    for each in shown:
        also = ", ".join(filter(None, (_default(each), _variable(each))))
        yield f"| {_name(each)} | {_text(each.help)}{also and f' ({also})'} |"


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    if getattr(parameter, "is_flag", False):
        return names
    return f"{names} `{parameter.metavar}`" if parameter.metavar else names


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    nothing = default is None or default is False or default == "" or default == () or callable(default)
    return "" if nothing or not parameter.show_default else f"default `{default}`"


def _variable(parameter: Any) -> str:
    variable = getattr(parameter, "envvar", None)
    return f"variable `{variable}`" if isinstance(variable, str) else ""


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("<", "&lt;").replace("*", "\\*").replace("|", "\\|")
