# $1 is how many versions stay: 0 when the package goes.
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    systemctl --quiet disable --now forebay-worker.service forebay-coordinator.service || :
    systemctl stop 'forebay-mount@*' 'forebay-up@*' || :
fi
