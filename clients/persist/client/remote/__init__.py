"""Everything that speaks gRPC: channels, sessions, and the ports served by servers."""

import os

# Log lines that users of the library cannot act on. gRPC looks once, when it is first imported: hence here.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
