#!/usr/bin/env bash
# Builds the documentation site, target/site/index.html, with mdBook, and checks every link. `make docs`.
set -euo pipefail
cd "$(dirname "$0")/.."

# mdBook and its search index, without its web server, in a directory of the user's cache.
mdbook=0.5.4
mdbook_at=${FOREBAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/forebay}/mdbook
site=target/site

if ! [[ -x $mdbook_at/bin/mdbook ]] || ! grep -q "^\"mdbook $mdbook " "$mdbook_at/.crates.toml" 2>/dev/null; then
    echo "docs: installing mdBook $mdbook into $mdbook_at, some minutes: it makes the pages from docs/"
    # There are few pages, so optimising it takes longer than it saves.
    cargo install --quiet --locked "mdbook@$mdbook" --no-default-features --features search --root "$mdbook_at" \
        --target-dir "$mdbook_at/target" --config profile.release.opt-level=0 --config 'profile.release.lto="off"'
    rm -rf "$mdbook_at/target"
fi

scripts/docs.py sources ${FOREBAY_BLESS:+--bless}
rm -rf "$site"
MDBOOK_LOG=warn "$mdbook_at/bin/mdbook" build
scripts/docs.py site "$site"
echo "docs: $site/index.html"
