#!/usr/bin/env bash
# For the tests: MiniStack, a second S3 server that takes every key, into .tools/ with the libraries it wants.
# Prints the command to start it with.
set -euo pipefail
cd "$(dirname "$0")/.."

ministack=1.5.33
home=$PWD/.tools/ministack-$ministack

if [ ! -x "$home/bin/ministack" ]; then
  printf 'ministack: installing it into .tools/\n' >&2
  uv=$(cat .venv/.uv)
  "$uv" venv --quiet --python .venv/bin/python --clear "$home" >&2
  "$uv" pip install --quiet --python "$home/bin/python" "ministack==$ministack" >&2
fi

echo "$home/bin/ministack"
