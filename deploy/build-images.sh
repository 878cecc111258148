#!/usr/bin/env bash
# Build the images: deploy/build-images.sh [--base IMAGE|debootstrap] [--context-only] [server] [pipelines]
#
# --base IMAGE        the base; docker.io/library/python:3.13-slim by default (BASE of the Containerfiles)
# --base debootstrap  make the base of Debian's packages, on machines that reach no registry of images (as root)
# --context-only      make the folder that a build takes, print it, and build nothing: for docker or podman
#
# Built with buildah; LAKESHARE_BUILDAH gives it options (docs/how-to/build-images.md). The tags are
# localhost/lakeshare-server:VERSION and localhost/lakeshare-pipelines:VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."

suite=trixie
python=3.13
packages=ca-certificates,python3,python3-venv
# Of what is done to the packages: raise it to make kept bases anew. Remove the folder for new versions of packages.
base_version=1
declare -A extras=(
  [server]="s3 gcs azure postgres otel"
  [pipelines]="pipelines s3 gcs azure postgres otel"
)
cache=${LAKESHARE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/lakeshare}/images
read -ra buildah <<<"${LAKESHARE_BUILDAH:-buildah}"

say() { printf 'images: %s\n' "$*" >&2; }

# A tar of a Debian with Python, kept in the cache folder; its path.
make_base() {
  local key tar mirror
  key=$(printf '%s' "$suite $packages $base_version" | sha256sum | cut -c1-12)
  tar=$cache/base-$suite-$(dpkg --print-architecture)-$key.tar
  if [ ! -f "$tar" ]; then
    [ "$(id -u)" = 0 ] || { say "--base debootstrap needs root; run it as root, or name an image with --base"; return 1; }
    command -v debootstrap >/dev/null || { say "debootstrap is missing; run apt-get install debootstrap"; return 1; }
    say "making a base of Debian $suite in $tar (minutes, once)"
    scratch=$(mktemp -d "$cache/.base-XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    # From the mirror that apt uses here.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' | head -1)
    debootstrap --variant=minbase --include="$packages" "$suite" "$scratch/root" "${mirror:-http://deb.debian.org/debian}" \
      >"$scratch/log" || { tail -5 "$scratch/log" >&2; return 1; }
    # Any mirror but Debian's own is this machine's business.
    echo "deb http://deb.debian.org/debian $suite main" >"$scratch/root/etc/apt/sources.list"
    rm -rf "$scratch"/root/var/cache/apt/* "$scratch"/root/var/lib/apt/lists/* "$scratch"/root/var/log/* \
      "$scratch"/root/usr/share/{doc,man,info,locale,lintian}/* "$scratch"/root/etc/{resolv.conf,hostname}
    mkdir "$scratch/root/var/lib/apt/lists/partial"
    tar -C "$scratch/root" --numeric-owner -cf "$scratch/base.tar" .
    mv "$scratch/base.tar" "$tar"
  fi
  echo "$tar"
}

# The image of that tar in buildah's storage; its name.
import_base() {
  local tar name container
  tar=$(make_base)
  name=localhost/$(basename "$tar" .tar)
  if ! "${buildah[@]}" inspect --type image "$name" >/dev/null 2>&1; then
    container=$("${buildah[@]}" from scratch)
    "${buildah[@]}" add -q "$container" "$tar" / >&2
    "${buildah[@]}" config --env PATH=/usr/local/bin:/usr/bin:/bin --cmd bash "$container" >&2
    "${buildah[@]}" commit -q --rm "$container" "$name" >&2
  fi
  echo "$name"
}

# The folder that the build of image $1 takes; wheels are linked, not copied.
make_context() {
  local folder=$cache/context-$1 wheels
  read -ra chosen <<<"${extras[$1]}"
  wheels=$(.venv/bin/python deploy/wheelhouse.py "$cache" "$python" "${chosen[@]}")
  rm -rf "$folder"
  mkdir -p "$folder/lakeshare"
  cp -al "$wheels" "$folder/wheels"
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 315532800) \
    .venv/bin/python -m hatchling build -t wheel -d "$folder/lakeshare" >&2
  cp "deploy/Containerfile.$1" "$folder/Containerfile"
  [ "$1" = server ] || .venv/bin/python deploy/bake_jars.py "$folder/jars" >&2
  echo "$folder"
}

build() {
  local version revision
  version=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("lakeshare"))')
  revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
  # The format of Docker: that of OCI has no HEALTHCHECK. The stage with the packages keeps a name, so that its layers stay.
  local options=(--format docker --isolation chroot --layers --build-arg "BASE=$2" --file "$3/Containerfile")
  "${buildah[@]}" build "${options[@]}" --target builder --tag "localhost/lakeshare-$1:builder" "$3" >&2
  "${buildah[@]}" build "${options[@]}" --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
    --tag "localhost/lakeshare-$1:$version" --tag "localhost/lakeshare-$1:latest" "$3" >&2
  say "built localhost/lakeshare-$1:$version"
}

# Layers of earlier builds, and wheels that none has used for two weeks.
remove_unused() {
  "${buildah[@]}" rmi --prune >/dev/null 2>&1 || true
  find "$cache" -maxdepth 1 -name 'wheels-*' -mtime +14 -exec rm -rf {} +
}

base=docker.io/library/python:3.13-slim
builds=true
images=()
while [ $# -gt 0 ]; do
  case $1 in
    --base) base=${2:?--base needs an image, or debootstrap}; shift ;;
    --context-only) builds=false ;;
    server | pipelines) images+=("$1") ;;
    *) say "unknown argument $1; usage: deploy/build-images.sh [--base IMAGE|debootstrap] [--context-only] [server] [pipelines]"; exit 2 ;;
  esac
  shift
done
[ ${#images[@]} -gt 0 ] || images=(server pipelines)

[ -e .venv/.uv ] || bash deploy/bootstrap.sh
mkdir -p "$cache"
if $builds && [ "$base" = debootstrap ]; then base=$(import_base); fi
for image in "${images[@]}"; do
  context=$(make_context "$image")
  if $builds; then build "$image" "$base" "$context"; else echo "$context"; fi
done
if $builds; then remove_unused; fi
