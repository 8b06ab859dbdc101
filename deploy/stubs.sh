#!/bin/sh
# Generates the Python stubs of protos/ below the folder given: deploy/stubs.sh clients
set -eu
cd "$(dirname "$0")/.."
out=$1
PATH="$PWD/.venv/bin:$PATH" # The mypy plugins are found by name.
export PATH
python -m grpc_tools.protoc -I protos \
    --python_out="$out" --mypy_out=quiet:"$out" \
    --grpc_python_out="$out" --mypy_grpc_out=quiet:"$out" \
    protos/persist/v1/*.proto
