#!/usr/bin/env bash
# Checks and tests the alert rules: promtool (PROMTOOL, or deploy/tools.sh promtool), then every rule has a unit test.
set -euo pipefail
cd "$(dirname "$0")"
promtool=${PROMTOOL:-$(bash ../tools.sh promtool)}
"$promtool" check rules --lint=all rules.yaml
"$promtool" test rules rules_test.yaml
