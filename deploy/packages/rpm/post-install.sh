# $1 is how many versions are installed now: 1 at an installation, 2 at an upgrade.
systemd-sysusers forebay.conf
systemd-tmpfiles --create forebay.conf || :
# Not a file of the package: an upgrade leaves it as it is.
if [ ! -e /etc/forebay/forebay.toml ]; then
    install -D -m 0644 /usr/share/forebay/forebay.toml /etc/forebay/forebay.toml
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    if [ "$1" -ge 2 ]; then
        # Mounts are taken over with what is open in them, and before their worker is restarted: what was asked of it is answered
        # first.
        for unit in $(systemctl list-units --plain --no-legend --state=active,activating,reloading 'forebay-mount@*' 'forebay-up@*' | cut -d' ' -f1); do
            case $(systemctl show --property=ActiveState --value "$unit") in
            active | reloading)
                systemctl reload "$unit" ||
                    echo "$unit goes on with the program that it has: systemctl status $unit says why" >&2
                ;;
            # One that is not ready yet is not reloaded; who reads from one that is kept waits on.
            activating) timeout 60 systemctl try-restart "$unit" || : ;;
            esac
        done
        # Where their etcd is away, they are not ready for as long as that takes: after a minute systemd goes on with it alone.
        timeout 60 systemctl try-restart forebay-worker.service forebay-coordinator.service || :
    fi
fi
