#!/bin/sh
# Resolves every extra afresh and writes the versions to constraints.txt.
set -eu
cd "$(dirname "$0")/.."
command -v uv >/dev/null || { echo "uv is needed: see its documentation for how to install it" >&2; exit 1; }
{
    # shellcheck disable=SC2016
    echo '# The versions `make setup` installs: known to work together. Renew with `make constraints`.'
    uv pip compile -q --no-header --no-annotate --universal --python-version 3.11 --all-extras pyproject.toml
} >constraints.new
mv constraints.new constraints.txt
