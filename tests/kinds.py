"""Kinds of tests, by what they run on: each is a marker (``-m "not spark"``), set by folder."""

KINDS = {
    "unit": "pure code, and what is on this disk: no servers",
    "simulated": "worlds in one process, with a clock of their own",
    "stores": "the library over real Redis, PostgreSQL and S3 servers, and over memory and files",
    "services": "servers and commands, most of them as processes",
    "spark": "Spark, with a JVM",
    "soak": "many processes at work at once, of which some die",
}
FOLDERS = {
    "tests/unit/": "unit",
    "tests/property/": "unit",
    "tests/golden/": "unit",
    "tests/test_": "unit",
    "tests/simulation/": "simulated",
    "tests/conformance/": "stores",
    "tests/client/": "stores",
    "tests/machine/": "stores",
    "tests/catalog/": "stores",
    "tests/control/": "stores",
    "tests/ingest/": "stores",
    "tests/services/": "services",
    "tests/cli/": "services",
    "tests/e2e/": "services",
    "tests/pages/": "services",
    "tests/spark/": "spark",
    "tests/scenarios/": "soak",
    "tests/soak/": "soak",
}
REAL_PROCESSES = ("stores", "services", "spark", "soak")
"""Kinds that share the machine with what else runs on it, and can fail because of that."""


def kind_of(test: str) -> str | None:
    """The kind of a test, by its file: ``tests/…``."""
    return next((kind for folder, kind in FOLDERS.items() if test.startswith(folder)), None)
