# The units under systemd. The first line that fails ends it; /results/end has the exit code.
trap 'echo $? >/results/end' EXIT
set -eu
export HOME=/root
touch /results/booted
fail() { echo "FAILED: $*"; exit 1; }
equal() { [ "$2" = "$3" ] || fail "$1: $2, expected $3"; echo "ok: $1"; }
main_pid() { systemctl show -p MainPID --value "$1"; }
restrictions() { grep -E '^(CapBnd|NoNewPrivs|Seccomp):' "/proc/$1/status" | tr -s '\t\n' ' '; }
submit() { divvy submit --parsable -g 0.05 -- "$@"; }
code() { divvy wait "$1" >/dev/null 2>&1 && echo 0 || echo $?; }

systemctl start divvy
[ "$(restrictions "$(main_pid divvy)")" != "$(restrictions 1)" ] || fail "the daemon has no restrictions"

job=$(submit sh -c 'grep -E "^(CapBnd|NoNewPrivs|Seccomp):" /proc/self/status | tr -s "\t\n" " "')
code "$job" >/dev/null
equal "a job of root has the restrictions of PID 1" "$(divvy logs "$job")" "$(restrictions 1)"
job=$(submit sh -c 'sed -n s/^0:://p /proc/self/cgroup')
code "$job" >/dev/null
equal "its group" "$(divvy logs "$job" | sed 's/divvy-[0-9a-f]*-/divvy-/')" \
    "/divvy.slice/divvy-forkserver.service/divvy-$job"
job=$(submit sh -c 'touch /usr/written && rm /usr/written && sleep 1 && readlink /proc/self/fd/2')
systemctl restart divvy
equal "it writes to /usr, through a restart" "$(code "$job")" 0
equal "the path of its log" "$(divvy logs "$job")" "/var/lib/divvy/jobs/$job/log"

job=$(submit sh -c 'sleep 1; exit 7')
systemctl stop divvy
equal "the fork server without a daemon" "$(systemctl is-active divvy-forkserver.service || true)" inactive
systemctl start divvy
equal "a job through a stop" "$(code "$job")" 7

jobs=
for round in $(seq 20); do
    for pause in 0 0.5; do
        jobs="$jobs $(submit sh -c "echo $round >>/tmp/ran; sleep $pause; exit $round"):$round"
    done
    case $((round % 3)) in
    0) kill -KILL "$(main_pid divvy)" ;;
    1) kill -KILL "$(main_pid divvy-forkserver)" || true ;;
    2) kill -KILL "$(main_pid divvy-forkserver)" "$(main_pid divvy)" || true ;;
    esac
done
# The last crash may be a moment ago.
until divvy ps >/dev/null 2>&1; do sleep 0.05; done
for job in $jobs; do
    equal "job ${job%:*} through 20 crashes" "$(code "${job%:*}")" "${job#*:}"
done
equal "each ran once" "$(wc -l </tmp/ran)" 40

mknod -m 666 /dev/nvidiactl c 195 255
outside() {
    systemd-run --quiet --pipe --wait --slice="$1" --setenv=LC_ALL=C \
        setpriv --reuid 60101 --regid 60101 --clear-groups sh -c "$2" 2>&1 | sed 's/.*: //'
}
open='(: </dev/nvidiactl)'
for nodes in open jobs open; do
    printf '[Service]\nExecStart=\nExecStart=/usr/bin/divvy daemon --system --set device-nodes=%s\n' $nodes \
        >/etc/systemd/system/divvy.service.d/nodes.conf
    systemctl daemon-reload
    systemctl restart divvy
    opens='No such device or address'
    case $nodes in
    jobs) expected='Operation not permitted' ;;
    *) expected=$opens ;;
    esac
    job=$(setpriv --reuid 60101 --regid 60101 --clear-groups divvy submit --parsable -g 0.05 -- \
        sh -c "$open; echo >&2; exec sleep 100")
    until divvy logs "$job" | grep -q 'No such\|not permitted'; do sleep 0.05; done
    pid=$(divvy describe "$job" -o json | grep -oE '"pid": ?[0-9]+' | grep -oE '[0-9]+' | head -1)
    equal "$nodes: a job" "$(divvy logs "$job" | sed -n '1s/.*: //p')" "$opens"
    equal "$nodes: a login" "$(outside user.slice "$open")" "$expected"
    equal "$nodes: a service" "$(outside system.slice "$open")" "$expected"
    equal "$nodes: root of a user namespace" "$(outside user.slice "unshare -Urm sh -c '$open'")" "$expected"
    equal "$nodes: through the root of the job" "$(outside user.slice "(: </proc/$pid/root/dev/nvidiactl)")" "$expected"
    equal "$nodes: root" "$(LC_ALL=C sh -c "$open" 2>&1 | sed 's/.*: //')" "$opens"
    divvy cancel "$job" >/dev/null
done
