#!/bin/sh
# enter_root.sh ROOT PROGRAM…: runs a program with ROOT as `/`. Started by unshare in namespaces of its own. The root is a mount, as
# in a container: a job's mount namespace starts from `/`, which must not be a chroot.
set -e
cd "$1"
shift
mount --make-rprivate /
mount --bind . .
cd "$PWD"
mkdir -p proc dev/shm run tmp .old
mount -t proc proc proc
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
for device in null zero urandom; do
    test -e "dev/$device" || touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
pivot_root . .old
# A root with a C library and a shell alone has no umount; the namespace ends with the program.
if command -v umount >/dev/null; then
    umount -l /.old
    rmdir /.old
fi
exec "$@"
