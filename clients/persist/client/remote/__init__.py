"""Everything that speaks gRPC: channels, sessions, and the ports served by servers."""

import os

# Log lines that users of the library cannot act on. gRPC looks once, when it is first imported: hence here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# A child is refused what it inherits (``channel``). gRPC's own handlers of forks help only programs that say so to its
# Python side too, and end children of all others, whatever these do: with SIGABRT or SIGSEGV, now and then.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
