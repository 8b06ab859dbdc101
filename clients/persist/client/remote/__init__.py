"""Everything that speaks gRPC: channels, sessions, and the ports served by servers."""
