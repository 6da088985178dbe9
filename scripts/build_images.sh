#!/usr/bin/env bash
# Build the images of docker/ without a registry, and try each of them; as root.
#   scripts/build_images.sh [trainer] [airflow]    (default: both)
#   FRENZY_TORCH=cpu|cuda|cu126    the build of torch in the trainer's image (default: cpu)
#   FRENZY_BUILD_OPTIONS="..."     more words for `buildah build`, such as --volume of a pip.conf
# Their steps are those of the Dockerfiles; the base is Debian with its own Python, made here by mmdebstrap.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

images=("$@")
[ $# -gt 0 ] || images=(trainer airflow)
base=localhost/frenzy-base:bookworm
version="$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' plugins/frenzy/__init__.py)"
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER="${STORAGE_DRIVER:-vfs}"
say() { printf 'images: %s\n' "$*"; }
fail() { printf 'images: %s\n' "$*" >&2; exit 1; }

for each in "${images[@]}"; do
  [ -f "docker/$each/Dockerfile" ] || fail "there is no docker/$each/Dockerfile; images: $(cd docker && echo */ | tr -d /)"
done
[ "$(id -u)" = 0 ] || fail "only root may make a base and run steps in it; run: sudo make images"
for tool in buildah mmdebstrap; do
  command -v "$tool" >/dev/null || fail "$tool is missing; run: apt-get install buildah mmdebstrap"
done

make_base() {
  local work container
  work="$(mktemp -d)"
  say "making the base: Debian bookworm and its Python 3.11"
  mmdebstrap --quiet --variant=apt --include=ca-certificates,python3-venv,python-is-python3 bookworm "$work/base.tar"
  container="$(buildah from scratch)"
  buildah add --quiet "$container" "$work/base.tar" / >/dev/null
  rm -r "$work"
  buildah commit --quiet --rm "$container" "$base" >/dev/null
}

build() {
  say "building frenzy-$1:$version"
  # shellcheck disable=SC2086  # words
  buildah build --quiet --format docker --file "docker/$1/Dockerfile" --tag "localhost/frenzy-$1:$version" \
    --build-arg "PYTHON_IMAGE=$base" --build-arg "FRENZY_TORCH=${FRENZY_TORCH:-cpu}" ${FRENZY_BUILD_OPTIONS:-} . >/dev/null
}

try() {
  local container
  container="$(buildah from --pull-never "localhost/frenzy-$1:$version")"
  buildah run --volume "$PWD/scripts/image_smoke.py:/smoke.py:ro" "$container" -- python /smoke.py "$1"
  buildah rm "$container" >/dev/null
}

buildah inspect --type image "$base" >/dev/null 2>&1 || make_base
for each in "${images[@]}"; do
  started=$SECONDS
  build "$each"
  try "$each"
  say "frenzy-$each:$version is built and tried, in $((SECONDS - started)) s"
done
