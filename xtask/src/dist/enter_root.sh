#!/bin/sh
# enter_root.sh ROOT [--share FOLDER]… [--emulate] PROGRAM…: runs a program with ROOT as `/`, and with these folders of the machine.
# It starts in the first of them. With --emulate, the root's QEMU runs programs of arm64. Started by unshare in namespaces of its own. The root is a mount, as in a container: a job's mount
# namespace starts from `/`, which must not be a chroot.
set -e
cd "$1"
shift
mount --make-rprivate /
mount --bind . .
cd "$PWD"
start=
while [ "$1" = --share ]; do
    mkdir -p ".$2"
    mount --rbind "$2" ".$2"
    start=${start:-$2}
    shift 2
done
mkdir -p proc dev/shm run tmp .old
mount -t proc proc proc
if [ "$1" = --emulate ]; then
    shift
    # A list of the user namespace's own (Linux 6.7): the machine's other programs do not see it. The first 20 bytes of an ELF
    # file say 64 bits, little-endian, program or library, and machine 183. F: the file is opened now, for every root.
    mount -t binfmt_misc binfmt_misc proc/sys/fs/binfmt_misc
    zeros='\x00\x00\x00\x00\x00\x00\x00\x00'
    ones='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff'
    printf '%s' ":arm64:M::\x7fELF\x02\x01\x01\x00$zeros\x02\x00\xb7\x00:$ones\xfe\xff\xff\xff:$PWD/usr/bin/qemu-aarch64:F" \
        >proc/sys/fs/binfmt_misc/register
fi
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
cd "${start:-/}"
exec "$@"
