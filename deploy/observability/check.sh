#!/usr/bin/env bash
# Checks and tests the alert rules and the queries of the dashboards, with promtool: PROMTOOL, or the pinned one.
set -euo pipefail
cd "$(dirname "$0")"
promtool=${PROMTOOL:-$(bash ../tools.sh promtool)}
"$promtool" check rules --lint=all --lint-fatal rules.yaml
"$promtool" test rules rules_test.yaml
panels=$(mktemp --suffix=.yaml)
trap 'rm -f "$panels"' EXIT
python3 list_queries.py >"$panels"
"$promtool" check rules --lint=none "$panels"
