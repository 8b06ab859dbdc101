"""What the site writes by itself says all there is: names, commands, messages. And nothing it loads is elsewhere."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from pages.fences import ROOT

import persist
import persist.catalog
import persist.sinks
import persist_ingest
import pyspark_persist
from persist_cli.tree import tree

SITE = ROOT / "deploy/site"


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented(page: str) -> set[str]:
    return set(re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/reference" / page).read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("persist.md", persist),
        ("pyspark_persist.md", pyspark_persist),
        ("catalog.md", persist.catalog),
        ("sinks.md", persist.sinks),
    ],
)
def test_reference_has_every_name(page: str, package: ModuleType) -> None:
    told = documented(page)
    # Constants of the catalog are named by the classes of their objects.
    names = {name for name in package.__all__ if name != "aio" and not name.isupper()}
    assert {name for name in names if f"{package.__name__}.{name}" not in told} == set()
    assert {each for each in told if not hasattr(package, each.rpartition(".")[2])} == set()


def test_reference_of_ingestion_has_every_name() -> None:
    assert documented("persist_ingest.md") == {
        *(f"persist_ingest.{name}" for name in persist_ingest.__all__), "persist_ingest.sources.port",
    }  # fmt: skip


def test_reference_of_asyncio_has_every_name_that_differs() -> None:
    aio = persist.aio
    differ = {f"persist.aio.{name}" for name in aio.__all__ if getattr(aio, name) is not getattr(persist, name)}
    assert documented("aio.md") == differ


def test_reference_of_the_command_line_has_every_command_and_option() -> None:
    text = "\n".join(hook("commands").reference())
    root = typer.main.get_command(tree())
    waiting = [("persist", root)]
    seen = 0
    while waiting:
        words, command = waiting.pop()
        inner = getattr(command, "commands", {})
        waiting += [(f"{words} {name}", each) for name, each in inner.items() if not each.hidden]
        if not inner:
            section = text.partition(f" {words}\n")[2].partition("\n##")[0]
            assert section, words
            assert {each.opts[0] for each in command.params if f"`{each.opts[0]}`" not in section} <= {
                each.name for each in command.params if each.param_type_name == "argument"
            }
            seen += 1
    assert seen >= 30


def test_reference_of_grpc_has_every_method_message_and_field() -> None:
    protos = hook("protos")
    page = (ROOT / "docs/reference/grpc.md").read_text()
    [names] = protos.MARK.findall(page)
    text = protos.on_page_markdown(page)
    described = [protos.descriptors()[f"persist/v1/{name}.proto"] for name in names.split()]
    with_services = {name for name, file in protos.descriptors().items() if file.service}
    assert with_services <= {file.name for file in described}
    for file in described:
        for service in file.service:
            assert f"\n## {service.name}\n" in text
            assert all(f"| `{method.name}` |" in text for method in service.method)
        for message in file.message_type:
            section = text.partition(f"\n### {message.name}\n")[2].partition("\n##")[0]
            assert all(f"| `{field.name}` | {field.number} |" in section for field in message.field), message.name
            assert section.strip(), message.name


def test_comments_of_protos_become_markdown() -> None:
    prose = hook("protos").prose
    assert (
        prose(" One\n two.\n\n Rules:\n  * a\n    goes on\n  * b\n") == "One\ntwo.\n\nRules:\n\n * a\n   goes on\n * b"
    )
    assert prose(" Table\n   a   <b>\n end\n") == "Table\n\n    a   <b>\n\nend"


def test_what_is_loaded_from_elsewhere_is_found() -> None:
    loads = hook("offline").loads
    page = (
        '<link rel="stylesheet" href="assets/a.css"><link rel="canonical" href="https://here.test/">'
        '<script src="//cdn.test/x.js"></script><img src="https://pictures.test/y.png"><a href="https://free.test/">'
    )
    assert loads(page, ".html") == ["//cdn.test/x.js", "https://pictures.test/y.png"]
    assert loads("@import 'https://fonts.test/f.css'; a { background: url(../b.png) }", ".css") == [
        "https://fonts.test/f.css"
    ]
    assert loads('<style>@import url("https://fonts.test/f.css")</style>', ".html") == ["https://fonts.test/f.css"]


def test_nothing_is_asked_for_while_the_site_is_built(tmp_path: Path) -> None:
    program = tmp_path / "build.py"
    program.write_text(
        "import offline, socket\noffline.on_startup('build')\nsocket.create_connection(('127.0.0.1', 9))\n"
    )
    done = subprocess.run(
        [sys.executable, program], env={"PYTHONPATH": str(SITE)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: the site must build without a network" in done.stderr
