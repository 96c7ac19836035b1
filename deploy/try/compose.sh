#!/usr/bin/env bash
# Hold compose.yaml against the Compose specification. Nothing is started.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v check-jsonschema >/dev/null; then
    echo "SKIPPED compose.yaml: check-jsonschema is not installed"
    exit 0
fi
check-jsonschema --builtin-schema vendor.compose-spec "$here/../compose.yaml"
echo "PASSED the schema of compose.yaml"
