"""The imperative shell around the state machine; runs in a server or embedded."""
