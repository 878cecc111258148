#!/usr/bin/env bash
# Check the units and the Compose file with the programs that read them: systemd-analyze, and the library of Compose.
# What needs Python alone is tested in tests/unit/deploy.
set -euo pipefail
cd "$(dirname "$0")/.."

compose_go=v2.16.2

say() { printf 'check-services: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

check_units() {
  local unit exposed
  if ! command -v systemd-analyze >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd; } >"$scratch/apt.log" 2>&1 \
      || { tail -3 "$scratch/apt.log" >&2; fail "no systemd-analyze: install systemd"; }
  fi
  # The programs of this checkout, because verify looks for them.
  for unit in deploy/systemd/*.service; do
    sed "s,/opt/lakeshare/bin,$PWD/.venv/bin," "$unit" >"$scratch/$(basename "$unit")"
  done
  # It warns of unknown keys and ends with 0.
  SYSTEMD_UNIT_PATH=$scratch: systemd-analyze verify --man=no "$scratch"/*.service >"$scratch/verify.log" 2>&1 \
    || fail "systemd-analyze verify: $(cat "$scratch/verify.log")"
  [ ! -s "$scratch/verify.log" ] || fail "systemd-analyze verify: $(cat "$scratch/verify.log")"
  for unit in "$scratch"/*.service; do
    # In tenths; 10.0 is a service that may do everything.
    exposed=$(systemd-analyze security --no-pager --offline=true --threshold=25 "$unit" | tail -1) \
      || fail "$(basename "$unit"): $exposed"
    say "$exposed"
  done
}

check_compose() {
  local tools=${LAKESHARE_CACHE_DIR:-$HOME/.cache/lakeshare}/tools/compose-go-$compose_go
  if [ ! -x "$tools/cmd" ]; then
    command -v go >/dev/null || fail "no go on the PATH, which builds the library of Compose"
    GOBIN=$tools CGO_ENABLED=0 go install "github.com/compose-spec/compose-go/v2/cmd@$compose_go"
  fi
  mkdir -p "$scratch/deploy" "$scratch/dagster_home"
  cp dagster_home/dagster.yaml "$scratch/dagster_home/"
  # The program reads no variables.
  sed -E 's/\$\{[A-Z0-9_]+:\?[^}]*\}/x1/g; s/\$\{[A-Z0-9_]+:-([^}]*)\}/\1/g' deploy/compose.yaml >"$scratch/deploy/compose.yaml"
  "$tools/cmd" "$scratch/deploy/compose.yaml" >"$scratch/model.yaml" 2>"$scratch/compose.log" \
    || fail "deploy/compose.yaml: $(cat "$scratch/compose.log")"
  # A check that lets everything pass looks like a good one.
  sed 's/healthcheck:/healthchek:/' "$scratch/deploy/compose.yaml" >"$scratch/deploy/misspelt.yaml"
  if "$tools/cmd" "$scratch/deploy/misspelt.yaml" >/dev/null 2>&1; then fail "a misspelt key of Compose was not found"; fi
  say "deploy/compose.yaml follows the Compose specification"
}

check_units
check_compose
