# Part of postinst and of rpm's post, where their line UPGRADE stands. $root is empty, or the root that dpkg names.

# Names each unit that hides one of this package: systemd takes it, and nothing of what this version changes.
name_hidden_units() {
    for unit in #UNITS#; do
        for folder in /etc/systemd/system /usr/local/lib/systemd/system; do
            own=$root$folder/$unit
            # Not a masked unit, and not a link to the package's.
            if [ -f "$own" ] && ! [ "$own" -ef "$root/usr/lib/systemd/system/$unit" ]; then
                echo "divvy: $own hides the package's unit, and its restrictions and fixes. To use the package's:" >&2
                echo "divvy:   rm $own && systemctl daemon-reload && systemctl restart divvy" >&2
            fi
        done
    done
}

# Whether the new program refuses a flag of the unit, which a drop-in may have written for the former version. Words with
# blanks arrive cut, so no other error counts. With --status the program reads its flags and starts nothing.
refuses_flags() {
    line=$(systemctl show --property=ExecStart --value divvy.service |
        sed -n 's/.*argv\[\]=[^ ]* \(daemon .*\) ; ignore_errors=.*/\1/p')
    # shellcheck disable=SC2086 # the words of the unit
    [ -n "$line" ] && problems=$("$root/usr/bin/divvy" $line --status 2>&1 || true) &&
        case $problems in *"is the key"*) true ;; *) false ;; esac
}

# Restarts the daemon, if it runs, by the program $1: deb-systemd-invoke or systemctl. The new program checks the
# configuration file first: with one that it refuses, no daemon would serve, so the former version's goes on.
restart_daemon() {
    if ! systemctl is-active --quiet divvy.service; then
        return 0
    fi
    if [ -e "$root/etc/divvy/config.toml" ] &&
        ! problems=$(env -u DIVVY_CONFIG -u DIVVY_HOME "$root/usr/bin/divvy" config check --system 2>&1); then
        echo "$problems" >&2
        echo "divvy: the new version refuses /etc/divvy/config.toml, so the daemon of the former version serves on" >&2
        echo "divvy: correct the file, then: systemctl restart divvy" >&2
        return 0
    fi
    if refuses_flags; then
        echo "$problems" >&2
        echo "divvy: the new version refuses a flag of divvy.service, so the daemon of the former version serves on" >&2
        echo "divvy: move it into /etc/divvy/config.toml (systemctl edit divvy), then: systemctl restart divvy" >&2
        return 0
    fi
    if ! "$1" try-restart divvy.service; then
        echo "divvy: the daemon did not restart; jobs keep running. See: journalctl -u divvy" >&2
    fi
}
