#!/usr/bin/env bash
# Lint the chart, render a server and a site, and hold the result against Kubernetes' schemas. There is no cluster.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
chart=$here/../helm/offbeat
for tool in helm kubernetes-validate; do
    if ! command -v $tool >/dev/null; then
        echo "SKIPPED the chart: $tool is not installed"
        exit 0
    fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for role in server site; do
    helm lint --quiet --strict "$chart" -f "$chart/values-$role.yaml"
    helm template heart "$chart" -f "$chart/values-$role.yaml" >"$work/$role.yaml"
    kubernetes-validate --quiet --strict "$work/$role.yaml"
done
# What cannot work is refused when it is rendered.
for wrong in "role=both" "role=site,secret=north" "role=server" \
    "role=site,secret=north,site.address=h:7117,site.data=digits,backup.enabled=true"; do
    if helm template heart "$chart" --set "$wrong" >/dev/null 2>&1; then
        echo "FAILED: --set $wrong was rendered"
        exit 1
    fi
done
echo "PASSED helm lint, helm template, kubernetes-validate"
