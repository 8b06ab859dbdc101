"""A transaction of a handle happens once, and never stands for other updates than its own."""

import asyncio
from typing import Any

import pytest
from client.support import SCHEMA, Place, client_of, rows_of, table
from sure import as_a

import persist
from persist import Appended, ShardId

MINE, OTHERS = [(1, "b", 2, 1), (2, "d", 2, 1)], [(7, "x", 2, 1), (8, "y", 2, 1)]
"""As many rows, with the same diffs: what another job under the same name might bring."""


async def by_rows(writer: Any, rows: list[Any], transaction: persist.Transaction) -> Any:
    return await writer.compare_and_append(table(rows), 0, 100, transaction=transaction)


async def by_rows_at_upper(writer: Any, rows: list[Any], transaction: persist.Transaction) -> Any:
    return await writer.append_at_upper(table(rows), not_before=50, transaction=transaction)


DOORS = [by_rows, by_rows_at_upper]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("owner", ["", "mine"])
async def test_other_updates_under_a_committed_version_are_refused_and_the_same_are_a_replay(
    place: Place, door: Any, inline: bool, owner: str
):
    """For another job that took the same application id ``already_committed`` would be a loss of its rows."""
    settings = persist.Settings() if inline else persist.Settings(inline_part_bytes_max=0)
    async with client_of(place, settings=settings) as client:
        shard = ShardId.new()
        writer, reader = await client.open(shard, schema=SCHEMA)
        first = await door(writer, MINE, persist.Transaction(app_id="job", version=3, owner=owner))
        for other in DOORS:
            writer = await client.open_writer(shard)
            again = await other(writer, MINE, persist.Transaction(app_id="job", version=3, owner=owner))
            assert again.already_committed
            assert again.upper == first.upper
            for rows in (OTHERS, MINE[:1], []):
                for version in (3, 2):
                    with pytest.raises(persist.InvalidArgument) as refused:
                        await other(writer, rows, persist.Transaction(app_id="job", version=version))
                    assert str(refused.value.details["newest"]) == "3"
                    assert refused.value.hint
        found = rows_of(await (await reader.snapshot(first.upper.elements[0] - 1)).to_arrow())
        assert found == [(1, "b", 1), (2, "d", 1)]
        assert await writer.resolve() == ()


@pytest.mark.parametrize("at_upper", [True, False])
async def test_prepared_updates_under_a_committed_version_are_refused_as_far_as_their_diffs_tell(
    place: Place, at_upper: bool
):
    async with client_of(place) as client:
        writer, reader = await client.open(ShardId.new(), schema=SCHEMA)

        async def commit(rows: list[Any], version: int) -> Any:
            batch = await asyncio.to_thread(prepared, writer.batch_spec(), rows)
            transaction = persist.Transaction(app_id="job", version=version)
            if at_upper:
                return await writer.append_batches_at_upper([batch], not_before=50, transaction=transaction)
            return await writer.compare_and_append_batches([batch], 0, 100, transaction=transaction)

        assert not (await commit(MINE, 3)).already_committed
        assert (await commit(MINE, 3)).already_committed
        for rows, version in ((MINE[:1], 3), ([], 3), (MINE, 2)):
            with pytest.raises(persist.InvalidArgument):
                await commit(rows, version)
        assert (await reader.snapshot(writer.upper.elements[0] - 1)).rows == 2


def prepared(spec: Any, rows: list[Any]) -> Any:
    builder = spec.open()
    if rows:
        builder.add(table(rows))
    return builder.finish()


async def test_version_without_updates_keeps_others_from_being_taken_for_it(place: Place):
    async with client_of(place) as client:
        writer, _ = await client.open(ShardId.new(), schema=SCHEMA)
        nothing = persist.Transaction(app_id="job", version=1)
        await by_rows_at_upper(writer, [], nothing)
        assert (await by_rows_at_upper(writer, [], nothing)).already_committed
        with pytest.raises(persist.InvalidArgument, match="something else"):
            await by_rows_at_upper(writer, MINE, nothing)


async def test_updates_of_a_version_are_the_same_however_they_are_cut_and_whatever_their_times(place: Place):
    many = [(key, "v" * (key % 7), 3, 1) for key in range(5_000)]
    async with client_of(place, settings=persist.Settings(sort_rows=1_024)) as client:
        writer, _ = await client.open(ShardId.new(), schema=SCHEMA)
        transaction = persist.Transaction(app_id="job", version=1)
        await writer.compare_and_append(table(many), 0, 9, transaction=transaction)
        later = [(key, name, 20, diff) for key, name, _, diff in many]
        pieces = [table(later[at : at + 700]) for at in range(0, len(later), 700)]
        assert as_a(Appended, await writer.compare_and_append(pieces, 9, 30, transaction=transaction)).already_committed
        later[-1] = (4_999, "other", 20, 1)
        with pytest.raises(persist.InvalidArgument):
            await writer.compare_and_append(table(later), 9, 30, transaction=transaction)
