# Sourced by scripts that need programs which cargo installs: packaging, releases. They live in a directory of the user's
# cache, and not in anybody's path.

tools_at=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/tools
PATH=$tools_at/bin:$PATH

# need CRATE VERSION PURPOSE [LEVEL]: installs a program, unless this version is there.
need() {
    local crate=$1 version=$2 purpose=$3 level=${4:-1}
    if [[ -x $tools_at/bin/$crate ]] && grep -q "^\"$crate $version " "$tools_at/.crates.toml" 2>/dev/null; then
        return
    fi
    echo "installing $crate $version into $tools_at: $purpose" >&2
    # They run for seconds, so optimising them takes longer than it saves, and so does linking them as their authors do for a release.
    cargo install --quiet --locked "$crate@$version" --root "$tools_at" --target-dir "$tools_at/target" \
        --config "profile.release.opt-level=$level" --config 'profile.release.lto="off"' \
        --config profile.release.codegen-units=256 >&2
    rm -rf "$tools_at/target"
}

# need_command COMMAND PACKAGES PURPOSE: says what to install, and ends, where a command is missing.
need_command() {
    local command=$1 packages=$2 purpose=$3
    if ! command -v "$command" >/dev/null 2>&1; then
        echo "$command is missing: $purpose; on Debian: apt-get install $packages" >&2
        exit 1
    fi
}
