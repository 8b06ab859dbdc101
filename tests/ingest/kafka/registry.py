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
from typing import Any
from urllib.parse import unquote

import fastavro


class RegistryServer:
    """``url``: where it answers. What was asked: ``asked``, as paths. ``user`` and ``password``: who may ask."""

    def __init__(self, *, user: str = "", password: str = "", tls: tuple[str, str] | None = None) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
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

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        if self._expected is not None and authorization != self._expected:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.is_broken:
            return 500, {"error_code": 50001, "message": "Error in the backend data store"}
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            schema = self.schemas.get(int(found[1]))
            return (200, schema) if schema else (404, {"error_code": 40403, "message": f"Schema {found[1]} not found"})
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/latest", path):
            subject = unquote(found[1])
            ids = self.subjects.get(subject)
            if not ids:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            return 200, {"subject": subject, "version": len(ids), "id": ids[-1], **self.schemas[ids[-1]]}
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
