# $1 is how many versions stay: 0 when the package goes.
if [ "$1" -eq 0 ] && [ -d /run/systemd/system ]; then
    # Before their worker is: it takes to the bucket what was written.
    systemctl stop 'forebay-mount@*' 'forebay-up@*' || :
    systemctl --quiet disable --now forebay-worker.service forebay-coordinator.service || :
fi
