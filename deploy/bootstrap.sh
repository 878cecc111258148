#!/usr/bin/env bash
# Make .venv from requirements.lock with nothing but a Python 3.11+ on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

# A distribution's Python comes first: it is built with profile-guided optimisation. One that a version manager compiled
# usually is not: measured with pyenv's 3.11.7, the tests take a tenth more processor time, plain loops 40 % more.
# The imports are what a minimal package of Python leaves out.
find_python() {
  local name
  for name in ${LAKESHARE_PYTHON:-/usr/bin/python3 python3 python3.13 python3.12 python3.11 python}; do
    if "$name" -c 'import ctypes, sqlite3, ssl, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$name" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  local needed="Python 3.11 or newer with ctypes, sqlite3 and ssl"
  if [ -n "${LAKESHARE_PYTHON:-}" ]; then
    say "LAKESHARE_PYTHON=$LAKESHARE_PYTHON is no $needed; name another one, or unset it"
  else
    say "no $needed found; install one, or name it with LAKESHARE_PYTHON=/path/to/python"
  fi
  return 1
}

find_uv() {
  if command -v uv >/dev/null 2>&1; then command -v uv; return; fi
  if [ ! -x .tools/bin/uv ]; then
    say "installing uv into .tools/"
    # Some distributions ship Python without venv or without pip: either one, of any Python on the PATH, is enough.
    install_uv "$1" 2>/dev/null || install_uv python3 \
      || { say "neither 'python -m venv' nor 'python -m pip' works here; install one of them, or uv itself"; return 1; }
  fi
  echo "$PWD/.tools/bin/uv"
}

install_uv() {
  { "$1" -m venv --clear .tools && .tools/bin/python -m pip install --quiet 'uv==0.13.8'; } >&2 \
    || "$1" -m pip install --quiet --prefix "$PWD/.tools" 'uv==0.13.8' >&2
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
