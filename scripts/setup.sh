#!/usr/bin/env bash
# Make .venv with the pinned packages and holdfast itself, and find a Java for Spark.
# A second run sees the stamp of the first and does nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

MIN_PYTHON=11 # 3.11
MIN_JAVA=17
STAMP=.venv/.setup-stamp
JAVA_RECORD=.venv/java-home

say() { printf 'setup: %s\n' "$*"; }
die() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# What the environment was made from. If any of it changes, it is made up to date again.
key() {
  {
    cat pyproject.toml requirements.lock scripts/setup.sh
    printf '%s|%s' "$PWD" "${JAVA_HOME:-}"
  } | sha256sum
}

may_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
  say "installing $* from Debian's packages"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 && return
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

find_python() {
  local candidate
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c "import sys; sys.exit(sys.version_info < (3, $MIN_PYTHON))" 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.$MIN_PYTHON or newer is needed, and python3 here is $(python3 -V 2>/dev/null || echo missing): install one"
}

make_venv() {
  local python
  python=$(find_python)
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    may_apt || die "$python has no venv module: install Debian's package python3-venv, then run make setup again"
    apt_install python3-venv
  fi
  say "making .venv with $("$python" -V) ($python)"
  "$python" -m venv .venv
}

# The major version of the Java in a folder, 0 when there is none.
java_major() {
  local line
  line=$("$1/bin/java" -version 2>&1 | grep -m1 version) || line=""
  [[ $line =~ \"([0-9]+) ]] && echo "${BASH_REMATCH[1]}" || echo 0
}

find_java() {
  local home candidates=()
  [ -n "${JAVA_HOME:-}" ] && candidates+=("$JAVA_HOME")
  if command -v java >/dev/null; then
    candidates+=("$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")")
  fi
  candidates+=(/usr/lib/jvm/*)
  for home in "${candidates[@]}"; do
    if [ -x "$home/bin/java" ] && [ "$(java_major "$home")" -ge "$MIN_JAVA" ]; then
      echo "$home"
      return
    fi
  done
  return 1
}

ensure_java() {
  local home
  if ! home=$(find_java); then
    may_apt || die "Spark needs Java $MIN_JAVA or newer, and none was found in JAVA_HOME, on PATH or in /usr/lib/jvm:" \
      "install one (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME, then run make setup again"
    apt_install openjdk-17-jre-headless
    home=$(find_java) || die "openjdk-17-jre-headless was installed but no Java $MIN_JAVA was found in /usr/lib/jvm"
  fi
  say "Java $(java_major "$home") in $home"
  echo "$home" >"$JAVA_RECORD"
}

[ "$(cat "$STAMP" 2>/dev/null)" = "$(key)" ] && exit 0

.venv/bin/python -c 'import pip' 2>/dev/null || make_venv
ensure_java
say "installing the pinned packages; the first time pip builds pyspark, which takes a minute"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
# hatchling and editables are pinned too, so the build needs no environment of its own.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
# An archive of Spark's classes, once for a machine: every Spark started later, in tests, too, starts sooner.
JAVA_HOME="$(cat "$JAVA_RECORD")" .venv/bin/holdfast prepare >/dev/null ||
  say "no archive of Spark's classes could be made: Spark starts a few seconds later each time"
key >"$STAMP"
say "done"
