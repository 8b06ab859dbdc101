"""Spark from the command line: ``persist sql --runner spark`` and ``persist view run``."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import run_fork


def persist(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command; those that start Spark are interpreters of their own, with which it ends."""
    if "spark" not in words and words[:2] != ("view", "run"):
        return run_fork("persist_cli", *words, "--location", where)
    command = [sys.executable, "-m", "persist_cli", *words, "--location", str(where)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.usefixtures("spark_forks")
@pytest.mark.timeout(600)
def test_views_and_queries_of_the_command_line_are_computed_by_spark(tmp_path: Path) -> None:
    made = persist(
        tmp_path,
        "sql",
        "create table t (id int primary key, n numeric(9,2)); insert into t values (1, 1.5), (2, null), (3, 1.5);"
        "create materialized view v with (runner = 'spark') as select n, count(*) as rows from t group by n",
    )
    assert made.returncode == 0, made.stderr
    time.sleep(1.1)  # so that a refresh time lies between the rows and what is written next
    assert persist(tmp_path, "sql", "insert into t values (4, 2.5)").returncode == 0
    before = persist(tmp_path, "view", "list", "--json")
    [view] = json.loads(before.stdout)
    assert (view["name"].split(".")[-1], view["runner"]) == ("v", "spark")
    done = persist(tmp_path, "view", "run", "--once", "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert row["stalled"] is None
    assert row["upper"] > (view["upper"] or 0)
    of_table = "select n, count(*) as rows from t where id < 4 group by n order by 1"
    answer = persist(tmp_path, "sql", "--runner", "spark", "--json", of_table)
    assert answer.returncode == 0, answer.stderr
    wanted = [{"n": "1.50", "rows": 2}, {"n": None, "rows": 1}]
    assert [json.loads(line) for line in answer.stdout.splitlines()] == wanted
    kept = persist(
        tmp_path, "sql", "--json", f"select n, rows from v where n is null or n < 2 order by 1 as of {row['upper'] - 1}"
    )
    assert [json.loads(line) for line in kept.stdout.splitlines()] == wanted
    refused = persist(tmp_path, "sql", "--runner", "spark", "select upper('a') from t")
    assert refused.returncode == 2
    assert "UPPER is not run by Spark" in refused.stderr
    assert "Traceback" not in refused.stderr
