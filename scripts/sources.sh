# Sourced: the package sources of this machine, which mmdebstrap makes systems from.

# package_sources [SUITE]: prints them, whatever their form; for another suite than this machine's, with its name.
package_sources() {
    local found=(/etc/apt/sources.list.d/*.sources) own
    own=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    if [[ -e ${found[0]:-} ]]; then
        cat "${found[@]}"
    else
        cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null || true
    fi | sed "s/\\b$own\\b/${1:-$own}/g"
}

# The suite of this machine, if it is Debian, else that which packages are made for.
own_suite() {
    (. /etc/os-release && if [[ ${ID:-} == debian ]]; then echo "$VERSION_CODENAME"; else echo bookworm; fi)
}
