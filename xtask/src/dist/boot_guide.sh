# Boots systemd as PID 1 of its own namespaces over a folder with a Debian, and runs /root/guide.sh there.
# Arguments: the folder, a folder for results, the root of cgroup v2.
set -eu
root=$1 out=$2 cgroups=$3
if [ "${4-}" != inside ]; then
    group=$cgroups/divvy-guide-$$
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
    exec unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child --propagation private \
        sh "$0" "$root" "$out" "$cgroups" inside
fi
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
for node in null zero full random urandom tty; do
    mknod -m 666 "$root/dev/$node" c $(stat -c '%Hr %Lr' "/dev/$node")
done
mkdir "$root/dev/pts" "$root/dev/shm"
chmod 1777 "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
system=$root/etc/systemd/system
mkdir -p "$system/multi-user.target.wants" "$system/divvy.service.d" "$root/results"
rm -f "$root/etc/fstab"
# The machine has no GPU.
printf '[Service]\nEnvironment=DIVVY_SIM=a100-80gb:8\n' >"$system/divvy.service.d/simulated.conf"
# What a container has no use for.
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket \
    systemd-udevd-kernel.socket systemd-logind.service systemd-timesyncd.service systemd-sysctl.service \
    systemd-modules-load.service systemd-remount-fs.service systemd-random-seed.service systemd-resolved.service \
    systemd-networkd.service getty.target systemd-update-utmp.service; do
    ln -sf /dev/null "$system/$unit"
done
ln -sf /lib/systemd/system/multi-user.target "$system/default.target"
printf '[Service]\nType=oneshot\nExecStart=/bin/sh /root/guide.sh\nWorkingDirectory=/root\nStandardOutput=file:/results/log\nStandardError=file:/results/log\nTimeoutStartSec=infinity\n' \
    >"$system/guide.service"
ln -s ../guide.service "$system/multi-user.target.wants/guide.service"
mount --bind "$out" "$root/results"
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
export container=divvy-test
exec /lib/systemd/systemd --log-target=null --show-status=false >/dev/null 2>&1 </dev/null
