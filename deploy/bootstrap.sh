#!/usr/bin/env bash
# Make .venv from requirements.lock with nothing but a Python 3.11+ on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

find_python() {
  local name
  for name in ${LAKESHARE_PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$name" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  say "no Python 3.11 or newer found; install one, or name it with LAKESHARE_PYTHON=/path/to/python"
  return 1
}

find_uv() {
  if command -v uv >/dev/null 2>&1; then command -v uv; return; fi
  if [ ! -x .tools/bin/uv ]; then
    say "installing uv into .tools/"
    # Some distributions ship Python without venv or without pip: either one is enough.
    "$1" -m venv .tools >&2 2>/dev/null && .tools/bin/python -m pip install --quiet 'uv==0.13.8' >&2 \
      || "$1" -m pip install --quiet --prefix "$PWD/.tools" 'uv==0.13.8' >&2 \
      || { say "neither 'python -m venv' nor 'python -m pip' works here; install one of them, or uv itself"; return 1; }
  fi
  echo "$PWD/.tools/bin/uv"
}

python=$(find_python)
uv=$(find_uv "$python")
say "installing the locked packages into .venv (about 800 MB the first time)"
[ -x .venv/bin/python ] || "$uv" venv --quiet --python "$python" .venv
# Where Python is told not to keep its bytecode (common in containers), every start would compile 2,000 modules anew.
"$uv" pip sync --quiet ${PYTHONDONTWRITEBYTECODE:+--compile-bytecode} --python .venv/bin/python \
  --require-hashes requirements.lock
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --editable .
echo "$uv" > .venv/.uv
touch .venv/.ready
