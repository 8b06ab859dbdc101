"""Everything that speaks gRPC: channels, sessions, and the ports served by servers."""

import os

# Lines that nobody can act on who uses a library. gRPC looks once, when it is first imported: hence here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
