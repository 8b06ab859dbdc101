"""The handlers of PersistCompaction, and jobs as messages.

Source: style.md rule 12; protos/persist/v1/compaction.proto.
"""

from collections.abc import AsyncIterator
from typing import Final, assert_never

from persist.core.frontier import Description
from persist.core.ids import ShardId
from persist.errors import InvalidArgument, PersistError
from persist.machine.compaction.compactor import Compacted
from persist.machine.compaction.job import News, Queued, Running
from persist.machine.compaction.scheduler import CompactionScheduler
from persist.v1 import compaction_pb2 as pb
from persist.v1 import types_pb2
from persist.v1.compaction_pb2_grpc import PersistCompactionServicer
from persist.wire.rpc_reads import frontier_message
from persist_host.calls import Context

REQUEST_ID_CHARS_MAX: Final = 64
REQUEST: Final = "request"
FAILED: Final = "failed"
"""What the details of an error say when the work failed, and not the call."""


class CompactionServicer(PersistCompactionServicer):
    """PersistCompaction over a few workers."""

    def __init__(self, workers: CompactionScheduler) -> None:
        self._workers = workers

    async def Compact(self, request: pb.CompactRequest, context: Context) -> AsyncIterator[pb.CompactResponse]:
        """Compact a shard and report how it goes."""
        name = request.request_id
        if len(name) > REQUEST_ID_CHARS_MAX:
            raise InvalidArgument("a request id is at most 64 characters", request_id=name[:REQUEST_ID_CHARS_MAX])
        job = self._workers.request(ShardId.parse(request.shard_id), whole=request.whole, name=name)
        compactions = 0
        try:
            async for news in job.news():
                compactions += isinstance(news, Compacted)
                yield response_of(news)
        except Exception as error:
            raise (_of_the_work(error) if job.failed else error) from error
        finally:
            if not name:
                job.cancel()
        yield pb.CompactResponse(done=pb.CompactDone(compactions=compactions))

    async def CancelCompaction(
        self, request: pb.CancelCompactionRequest, context: Context
    ) -> pb.CancelCompactionResponse:
        """Stop what was requested under an id."""
        return pb.CancelCompactionResponse(stopped=self._workers.cancel(request.request_id))

    async def ListCompactions(self, request: pb.ListCompactionsRequest, context: Context) -> pb.ListCompactionsResponse:
        """What is compacted here at the moment."""
        return pb.ListCompactionsResponse(
            compactions=[
                pb.Compaction(
                    shard_id=job.shard,
                    start_ms=job.underway.start_ms,
                    requested=job.requested,
                    progress=_progress(job.underway),
                )
                for job in self._workers.running
                if job.underway is not None
            ],
            requests_waiting=self._workers.requests_waiting,
            shards_waiting=self._workers.shards_waiting,
        )


def _of_the_work(error: Exception) -> PersistError:
    """The error of a call whose work failed, distinguished from those of the call."""
    if not isinstance(error, PersistError):
        return PersistError("the compaction failed", hint="see the log of the server", kind=type(error).__name__)
    error.details[REQUEST] = FAILED
    return error


def response_of(news: News) -> pb.CompactResponse:
    """The message of a piece of news."""
    match news:
        case Queued():
            return pb.CompactResponse(queued=pb.CompactQueued(ahead=news.ahead))
        case Running():
            return pb.CompactResponse(progress=_progress(news))
        case Compacted():
            return pb.CompactResponse(result=_result(news))
        case _:
            assert_never(news)


def _progress(underway: Running) -> pb.CompactProgress:
    progress = underway.progress
    return pb.CompactProgress(
        batches=progress.batches,
        rows=progress.rows,
        bytes=progress.bytes,
        rows_written=progress.rows_written,
        rows_per_second=underway.rows_per_second,
    )


def _result(result: Compacted) -> pb.CompactResult:
    return pb.CompactResult(
        desc=_description(result.desc),
        batches=result.batches,
        runs=result.runs,
        rows_before=result.rows_before,
        rows_after=result.rows_after,
        bytes_before=result.bytes_before,
        bytes_after=result.bytes_after,
        parts_reused=result.parts_reused,
        applied=result.applied,
        steps_left=result.steps_left,
        negative=result.negative,
    )


def _description(desc: Description) -> types_pb2.Description:
    return types_pb2.Description(
        lower=frontier_message(desc.lower), upper=frontier_message(desc.upper), since=frontier_message(desc.since)
    )
