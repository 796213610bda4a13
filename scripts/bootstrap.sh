#!/bin/sh
# Makes the environment that every make target uses: .venv at the root of the repository.
#   usage: scripts/bootstrap.sh          PYTHON=/path/to/python overrides the search for an interpreter
# Fast when nothing changed: a stamp in .venv holds a hash of this script, pyproject.toml and the checkout's place.
set -eu

TORCH=torch==2.13.0
VENV=.venv
cd "$(dirname "$0")/.."

say() { printf 'bootstrap: %s\n' "$*"; }

fail() { # fail WHAT FIX
    printf 'bootstrap: error: %s\n  fix: %s\n' "$1" "$2" >&2
    exit 1
}

recent() { # is $1 a Python >= 3.11 that runs?
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() { # prints the first usable interpreter; entries of PATH that cannot be run (a stray shim) are passed over
    if [ -n "${PYTHON:-}" ]; then
        recent "$PYTHON" || return 1
        printf '%s\n' "$PYTHON"
        return
    fi
    for name in python3.11 python3.12 python3; do
        rest=$PATH:/usr/local/bin:/usr/bin:
        while [ -n "$rest" ]; do
            folder=${rest%%:*}
            rest=${rest#*:}
            if [ -n "$folder" ] && [ -x "$folder/$name" ] && recent "$folder/$name"; then
                printf '%s\n' "$folder/$name"
                return
            fi
        done
    done
    return 1
}

stamp() { # prints what the stamp must say for the environment to be current; fails when the environment does not run
    "$VENV/bin/python" - "$TORCH" <<'PY' 2>/dev/null
import hashlib, pathlib, sys
digest = hashlib.sha256(f"{sys.argv[1]} {sys.version} {pathlib.Path.cwd()}".encode())
for name in ("pyproject.toml", "scripts/bootstrap.sh"):
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
}

need_venv_module() { # Debian and Ubuntu ship ensurepip in a package of its own
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 && return
    package=python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "$1 has no venv module: installing the system package $package with apt-get"
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y -qq "$package" >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -y -qq "$package" >/dev/null; } ||
            fail "apt-get could not install $package" "install $package by hand, or set PYTHON to an interpreter that has the venv module"
        return
    fi
    fail "$1 cannot make virtual environments (its venv or ensurepip module is missing)" \
        "as root: apt-get install -y $package; or set PYTHON to another Python >= 3.11"
}

step() { # step WHAT COMMAND...: runs a command and keeps saying that it is still at work
    what=$1
    shift
    start=$(date +%s)
    say "$what"
    "$@" </dev/null &
    child=$!
    trap 'kill "$child" 2>/dev/null; exit 130' INT TERM
    waited=0
    while kill -0 "$child" 2>/dev/null; do
        sleep 1
        waited=$((waited + 1))
        [ $((waited % 30)) -ne 0 ] || say "  still at work, $(($(date +%s) - start)) s"
    done
    trap - INT TERM
    wait "$child" || fail "$what: failed (pip's own message is above)" "check the network and the free disk space, then run the same command again"
    say "  done in $(($(date +%s) - start)) s"
}

if [ "$(stamp || true)" = "$(cat "$VENV/composer.stamp" 2>/dev/null || echo none)" ]; then
    exit 0
fi

if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || fail "no usable Python >= 3.11 among: ${PYTHON:-python3.11 python3.12 python3}" \
        "install Python 3.11 or newer with its venv module, or set PYTHON=/path/to/python"
    need_venv_module "$python"
    say "making $VENV with $python ($("$python" -V))"
    "$python" -m venv --clear "$VENV" || fail "could not make $VENV" "check that $(pwd) is writable and has about 2 GB free"
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_WARN_SCRIPT_LOCATION=1
[ -n "${HOME:-}" ] && [ -w "$HOME" ] || export PIP_NO_CACHE_DIR=1

step "installing $TORCH (the largest download, first so that nothing else chooses its version)" \
    "$VENV/bin/python" -m pip install --quiet "$TORCH"
step "installing composer-replication (editable) with its dependencies and the development tools" \
    "$VENV/bin/python" -m pip install --quiet --editable '.[dev]'

say "installed: $("$VENV/bin/python" - <<'PY'
import re, tomllib
from importlib.metadata import version
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
names = [re.match(r"[\w.-]+", line)[0] for line in project["dependencies"] + project["optional-dependencies"]["dev"]]
print(", ".join(f"{name} {version(name)}" for name in names))
PY
)"
stamp >"$VENV/composer.stamp"
say "$VENV is ready"
