"""Sources of type ``loadgen``: collections computed from a number, for tests, demonstrations and measurements.

Option ``generator`` says which: ``counter``, ``auction`` (users, auctions, bids) or ``tpcb`` (accounts, tellers,
branches, history). Message n of a partition is a function of the seed and n alone: nothing is kept anywhere, and any
task can compute any range at any time.
"""

from persist_ingest.sources.loadgen.reader import LoadgenType

LOADGEN = LoadgenType()
