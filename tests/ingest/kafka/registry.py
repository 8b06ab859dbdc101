"""A schema registry for tests: an HTTP server that speaks as much of Confluent's protocol as sources ask for.

Not Apicurio's: its program is not on Maven Central, only libraries of it are.
"""

import base64
import contextlib
import io
import json
import re
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no stubs


class RegistryServer:
    """``url``: where it answers. What was asked: ``asked``, as paths. ``user`` and ``password``: who may ask."""

    def __init__(self, *, user: str = "", password: str = "", tls: tuple[str, str] | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.serialized: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.is_broken = False
        self._expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode() if user else None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                code, answer = registry.answer(self.path, self.headers.get("Authorization"))
                body = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def register(self, subject: str, schema: Any, kind: str = "AVRO", **more: Any) -> int:
        """Its id."""
        id = len(self.schemas) + 1
        self.schemas[id] = {"schema": json.dumps(schema), **({} if kind == "AVRO" else {"schemaType": kind}), **more}
        self.subjects.setdefault(subject, []).append(id)
        return id

    def register_proto(self, subject: str, text: str, compiled: bytes, **more: Any) -> int:
        """A .proto file, and what protoc made of it: a FileDescriptorProto."""
        id = self.register(subject, None, "PROTOBUF", **more)
        self.schemas[id]["schema"] = text
        # As Confluent's does it, which does not know what the file is called.
        file = descriptor_pb2.FileDescriptorProto.FromString(compiled)
        file.name = "default"
        self.serialized[id] = base64.b64encode(file.SerializeToString()).decode()
        return id

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        if self._expected is not None and authorization != self._expected:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.is_broken:
            return 500, {"error_code": 50001, "message": "Error in the backend data store"}
        path, _, query = path.partition("?")
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            schema = self.schemas.get(int(found[1]))
            if schema is not None and query == "format=serialized" and int(found[1]) in self.serialized:
                schema = {**schema, "schema": self.serialized[int(found[1])]}
            return (200, schema) if schema else (404, {"error_code": 40403, "message": f"Schema {found[1]} not found"})
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(latest|\d+)", path):
            subject = unquote(found[1])
            ids = self.subjects.get(subject)
            if not ids:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            version = len(ids) if found[2] == "latest" else int(found[2])
            if not 1 <= version <= len(ids):
                return 404, {"error_code": 40402, "message": f"Version {version} not found."}
            id = ids[version - 1]
            return 200, {"subject": subject, "version": version, "id": id, **self.schemas[id]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def registry_server(**given: Any) -> Iterator[RegistryServer]:
    server = RegistryServer(**given)
    try:
        yield server
    finally:
        server.close()


def record(*fields: tuple[Any, ...], name: str = "Order") -> dict[str, Any]:
    """A schema of a record. A field: its name, its type, and its default if it has one."""
    made = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) > 2 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def framed(id: int, payload: bytes) -> bytes:
    return b"\0" + id.to_bytes(4) + payload


def avro(id: int, schema: Any, row: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), row)
    return framed(id, sink.getvalue())


def reference(name: str, subject: str, version: int = 1) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": version}


def compiled(folder: Path, name: str, text: str) -> bytes:
    """What protoc makes of a file, beside those that were compiled in this folder before: a FileDescriptorProto."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    known = Path(protoc.__file__).parent / "_proto"
    out = folder / "out.pb"
    assert protoc.main(["", f"-I{folder}", f"-I{known}", f"--descriptor_set_out={out}", name]) == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return file.SerializeToString()


def varint(value: int) -> bytes:
    """Zigzag, as message indexes are."""
    left = (value << 1) ^ (value >> 63)
    found = bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def indexed(*indexes: int) -> bytes:
    """Message indexes; those of the first message are one zero."""
    return b"\0" if indexes == (0,) else varint(len(indexes)) + b"".join(map(varint, indexes))
