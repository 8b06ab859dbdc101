"""The benchmark of the numbers to reach: `PYTHONPATH=tests python -m bench [--full] [--only P1,P3] [--rounds N]`.

Every goal is a ratio to a floor (the least work the operation needs on this machine) or to a peer, measured in the
same run, interleaved, on the same S3 server and the same Redis. A figure whose rows or checksum are wrong is void.

    stage.py     the servers that all suites share     rows.py     the data and its checksum
    floor/       floors: echo, group commit, encode    peers.py    deltalake and pyiceberg
    ours.py      persist as the benchmark uses it       suites/     one module per group of goals
    lakes/       persist, Delta and Iceberg inside Spark
    outcome.py   checks, gates, verdicts               report.py   the table and the JSON
"""
