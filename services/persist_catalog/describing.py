"""Describing: what is in the catalog as fields, from what this server knows of it, leader or not.

Source: protos/persist/v1/catalog_ddl.proto, Describe.
"""

import asyncio
from collections.abc import Mapping
from typing import TypeVar

from persist.core.catalog.ddl.described import ROLE
from persist.core.catalog.ddl.privileges import check_may_in_system
from persist.core.catalog.ddl.view import CatalogView
from persist.core.catalog.errors import Uninitialized
from persist.core.catalog.kinds import AUDIT_LOG, Kind
from persist.core.catalog.rows import Row, RowCodec
from persist.errors import InvalidArgument
from persist.v1 import catalog_ddl_pb2 as pb
from persist.wire.catalog.ddl import name_in, session_in, type_in
from persist.wire.catalog.ddl_entries import WantedItems, audit_listed, listed, page
from persist.wire.catalog.rpc import at_least_in
from persist_catalog.conflicts import changes_of
from persist_catalog.mirror import Mirror

K = TypeVar("K")
V = TypeVar("V")


class Describing:
    """A view that keeps up with a mirror. One is made when it is first asked for something."""

    def __init__(self, mirror: Mirror, codec: RowCodec) -> None:
        self._mirror = mirror
        self._codec = codec
        self._view: CatalogView | None = None
        self._upper = 0
        self._turn = asyncio.Lock()

    async def describe(self, request: pb.DescribeRequest, role: str) -> pb.DescribeResponse:
        """One page, as of now, or of what is enough. Raises InvalidArgument, UnknownObject, Uninitialized."""
        upper = await self._mirror.at_least(at_least_in(request))
        if not self._mirror.raw.is_initialized:
            raise Uninitialized("this environment does not exist yet", hint="the first Execute makes it")
        if role:
            async with self._turn:
                self._seen().role(role)
        if request.kind == pb.CATALOG_ENTRY_KIND_AUDIT_EVENT:
            _all_only(request)
            durable = await self._mirror.dump([AUDIT_LOG.tag], consolidated=True)
            entries, token = page(
                audit_listed(self._codec.decode(row)[0] for row, _, _ in durable.updates),
                request.page_token,
                request.page_size,
            )
        else:
            async with self._turn:
                view = self._seen()
            found = listed(view, request.kind, self._wanted(view, request, role))
            entries, token = page(found, request.page_token, request.page_size)
        return pb.DescribeResponse(entries=entries, next_page_token=token, upper=upper)

    async def check_admin(self, role: str) -> None:
        """Raises PrivilegeMissing, UnknownObject unless this role may write rows as they are."""
        if role in ("", ROLE) or not self._mirror.raw.is_initialized:
            return
        await self._mirror.sync()
        async with self._turn:
            view = self._seen()
        check_may_in_system(view, view.role(role), "A")

    def _wanted(self, view: CatalogView, request: pb.DescribeRequest, role: str) -> WantedItems:
        if request.kind not in (pb.CATALOG_ENTRY_KIND_ITEM, pb.CATALOG_ENTRY_KIND_HOLD):
            _all_only(request)
        types = frozenset(map(type_in, request.types))
        if not request.HasField("name"):
            return WantedItems(types=types)
        return WantedItems(view.resolve(name_in(request.name), session_in(request, role)).id, types)

    def _seen(self) -> CatalogView:
        known = None if self._view is None else self._mirror.since(self._upper)
        if self._view is None or known is None:
            self._view = CatalogView(_Reader(self._mirror, self._codec))
        else:
            self._view.apply(changes_of(self._codec, known))
        self._upper = self._mirror.upper
        return self._view


class _Reader:
    """Objects as a mirror has them: as bytes."""

    def __init__(self, mirror: Mirror, codec: RowCodec) -> None:
        self._rows = mirror.raw.rows
        self._codec = codec

    def get(self, kind: Kind[K, V], key: K) -> V | None:
        """See Reader."""
        return self.objects(kind).get(key)

    def objects(self, kind: Kind[K, V]) -> Mapping[K, V]:
        """See Reader."""
        rows = self._rows.get(kind.tag, {}).items()
        return dict(self._codec.decode(Row(kind.tag, key, value)) for key, value in rows)


def _all_only(request: pb.DescribeRequest) -> None:
    if request.HasField("name") or request.types:
        raise InvalidArgument("entries of this kind are returned all", hint="leave out name and types")
