# Shell functions that bring what Quire is built and tested with. Sourced by ./run and ./test, in the root of the tree.
#
# install_build_packages and install_check_packages ask dpkg first and call apt only for what is missing, so that a second
# call costs milliseconds and needs no network. On a system without dpkg they trust the reader.

readonly kBuildPackages=(g++ cmake ninja-build ccache libsimdjson-dev nlohmann-json3-dev libspdlog-dev libfmt-dev
  libcli11-dev libssl-dev libedit-dev libyaml-cpp-dev libgtest-dev librapidcheck-dev ca-certificates)
# The oldest compiler that the crates pinned in rust/quire-text accept.
readonly kRustMinor=87

# So that a compilation done in one clone is found from another.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

missing_packages() {
  local package
  for package in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || echo "$package"
  done
}

# Prints the newest version that apt could install, or nothing.
apt_candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([^(].*\)/\1/p'; }

apt_install() {
  local root=()
  if [[ $EUID -ne 0 ]]; then
    command -v sudo >/dev/null || fail "these packages are missing, and there is neither root nor sudo to install them: $*"
    root=(sudo)
  fi
  say "installing: $*"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" </dev/null >&2 \
    || fail "apt-get could not install: $*"
}

apt_update_once() {
  [[ -z "${apt_updated:-}" ]] || return 0
  apt_updated=1
  local root=()
  [[ $EUID -eq 0 ]] || root=(sudo)
  "${root[@]}" apt-get update -q </dev/null >&2 || say "apt-get update failed; going on with the lists that are there"
}

install_missing() {
  local missing
  mapfile -t missing < <(missing_packages "$@")
  [[ ${#missing[@]} -gt 0 ]] || return 0
  apt_update_once
  apt_install "${missing[@]}"
}

# Boost's headers from 1.81 on. Debian 12 has them beside an older default, newer systems as the default.
has_boost() {
  local header version
  for header in /usr/include/boost/version.hpp /usr/local/include/boost/version.hpp; do
    [[ -f $header ]] || continue
    version=$(sed -n 's/^#define BOOST_VERSION \([0-9]*\).*/\1/p' "$header")
    [[ "${version:-0}" -ge 108100 ]] && return 0
  done
  return 1
}

install_boost() {
  has_boost && return 0
  apt_update_once
  local package
  for package in libboost1.81-dev libboost1.83-dev libboost-dev; do
    [[ -n "$(apt_candidate "$package")" ]] && break
  done
  apt_install "$package"
  has_boost || fail "Boost 1.81 or newer is needed; $package brought an older one"
}

rust_minor() { "$1" --version 2>/dev/null | sed -n 's/^[a-z]* 1\.\([0-9]*\)\..*/\1/p'; }

has_cargo() {
  local minor
  # rustup's own folder is often missing from the path of a non-login shell.
  [[ ! -x "$HOME/.cargo/bin/cargo" ]] || PATH="$PATH:$HOME/.cargo/bin"
  command -v cargo >/dev/null && command -v rustc >/dev/null || return 1
  minor=$(rust_minor rustc)
  [[ "${minor:-0}" -ge $kRustMinor ]]
}

# cargo and rustc as they are, or from the system's packages where those are new enough (Debian 12: cargo-web).
install_cargo() {
  has_cargo && return 0
  if command -v apt-cache >/dev/null; then
    apt_update_once
    local cargo rust minor
    for cargo in cargo $(apt-cache pkgnames cargo-1. | grep -x 'cargo-1\.[0-9]*' | sort -V) cargo-web; do
      rust=${cargo/cargo/rustc}
      minor=$(apt_candidate "$rust" | sed -n 's/^1\.\([0-9]*\)\..*/\1/p')
      [[ "${minor:-0}" -ge $kRustMinor ]] || continue
      apt_install "$cargo" "$rust"
      # Versioned packages name their programs cargo-1.NN and keep the plain ones in a folder of their own.
      [[ ! -d "/usr/lib/rust${cargo#cargo}/bin" ]] || PATH="/usr/lib/rust${cargo#cargo}/bin:$PATH"
      has_cargo && return 0
    done
  fi
  fail "cargo and rustc 1.$kRustMinor or newer are needed to build the text library, and no package of this system has them; install them with rustup"
}

# python3 with pip and venv, from wherever python3 on the path comes.
install_python() {
  python3 -c 'import pip, venv, ensurepip' 2>/dev/null && return 0
  install_missing python3 python3-pip python3-venv
  python3 -c 'import pip, venv, ensurepip' || fail "python3 needs its modules pip and venv"
}

install_build_packages() {
  if command -v dpkg-query >/dev/null; then
    install_missing "${kBuildPackages[@]}"
    install_boost
  else
    say "not a Debian system: trusting that these are here, under its own names: ${kBuildPackages[*]} libboost1.81-dev"
  fi
  install_python
  install_cargo
}

# What the tests need beyond the build: install_check_packages [PACKAGE...]
install_check_packages() {
  ! command -v dpkg-query >/dev/null || install_missing "$@"
}

# The browser that the tests of the chat page drive. Without one they fail, and say so.
install_browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null || return 0
  done
  if command -v dpkg-query >/dev/null; then
    apt_update_once
    if [[ -n "$(apt_candidate chromium)" ]]; then
      apt_install chromium
      return 0
    fi
  fi
  say "this system has no package chromium: install Chromium or Chrome for the tests of the chat page"
}
