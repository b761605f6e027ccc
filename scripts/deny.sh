#!/usr/bin/env bash
# Checks licences, sources and bans of dependencies, and security advisories where their database can be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=scripts/tools.sh
source scripts/tools.sh
# It is done in seconds, and its release is linked in one piece with all that it depends on, by one thread.
command -v cargo-deny >/dev/null 2>&1 || need cargo-deny 0.20.2 "it checks the licences and advisories of dependencies" 0
cargo deny --all-features check bans licenses sources
if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny --all-features check advisories
else
    echo "deny: skipped advisories: their database cannot be fetched from here"
fi
