#!/usr/bin/env bash
# Checks licences, sources and bans of dependencies, and security advisories where their database can be fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo-deny >/dev/null 2>&1; then
    echo "deny: installing cargo-deny, which checks the licences and advisories of dependencies"
    cargo install cargo-deny --version 0.20.2 --locked
fi
cargo deny --all-features check bans licenses sources
if cargo deny fetch db >/dev/null 2>&1; then
    cargo deny --all-features check advisories
else
    echo "deny: skipped advisories: their database cannot be fetched from here"
fi
