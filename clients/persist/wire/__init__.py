"""Core values to bytes and back: parts, durable state, gRPC messages."""
