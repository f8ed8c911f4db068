# Shared by the scripts here; to be sourced. Expects `set -euo pipefail`.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=$(cd "$(dirname "$0")" && pwd)/${0##*/} # this one, wherever we go
# shellcheck disable=SC2034  # for those who source this
venv=$root/.venv
export KJBOD_CACHE=${KJBOD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kjbod}

say() { echo "kjbod: $*" >&2; }

die() {
  say "$*"
  exit 1
}

# help_if_asked MODULE ARGUMENT...: shows the help and ends, where -h or --help is among the arguments: that of the Python
# module, or, where that cannot run yet, what stands on top of the script. Nothing is set up for it.
help_if_asked() {
  local argument module=$1
  shift
  for argument; do
    case $argument in -h | --help) ;; *) continue ;; esac
    cd "$root" || exit
    if [[ $module && -x $venv/bin/python ]] && "$venv/bin/python" -m "$module" --help 2>/dev/null; then exit 0; fi
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$script"
    exit 0
  done
}

# Runs a command as root: directly, or by sudo where that asks for nothing. Fails otherwise.
as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo "$@"
  else
    return 1
  fi
}

# install_packages PACKAGE...: from Debian's or Ubuntu's archive. Fails, having said nothing on standard output, when
# this is not such a system or we may not.
install_packages() {
  command -v apt-get >/dev/null || return 1
  as_root true || return 1
  say "installing Debian packages: $*"
  local log
  log=$(mktemp)
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@")
  # A fresh machine has no package lists, an old one outdated ones: get them only when the first try fails.
  if ! as_root "${install[@]}" >"$log" 2>&1 &&
    ! { as_root apt-get update -q >"$log" 2>&1 && as_root "${install[@]}" >>"$log" 2>&1; }; then
    tail -n 3 "$log" >&2
    rm -f "$log"
    return 1
  fi
  rm -f "$log"
}
