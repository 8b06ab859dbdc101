"""The imperative shell around the state machine: it runs inside a server or embedded in the caller's process."""
