#!/bin/sh
# Lints the protos, compares them with the last committed main, and what is committed of generated code with a fresh run.
#
# PROTO_BASE names another git ref to compare with.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin

"$bin/buf" lint
echo "buf lint: clean"

# The newest of these that holds protos; HEAD itself compares the working tree with what is committed.
for ref in ${PROTO_BASE:-} origin/main main HEAD; do
    if git cat-file -e "$ref:protos/persist/v1" 2>/dev/null; then base=$ref; break; fi
done
if [ -z "${base:-}" ]; then
    echo "buf breaking: nothing committed to compare with"
else
    "$bin/buf" breaking --against ".git#ref=$(git rev-parse "$base")"
    echo "buf breaking: compatible with $base"
fi

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
deploy/stubs.sh "$fresh"
if diff -r -q -x __init__.py -x __pycache__ "$fresh/persist/v1" clients/persist/v1; then
    echo "stubs: equal to the protos"
else
    echo "stubs differ from the protos: run 'make proto' and commit clients/persist/v1" >&2
    exit 1
fi

"$bin/python" deploy/blocking.py --check
echo "blocking client: equal to the asyncio client"
