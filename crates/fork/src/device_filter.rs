//! A device filter of a control group: an eBPF program that the kernel asks before a process of the group, or of a group
//! below it, opens a device node (bpf(2); cgroup-v2, "Device controller").
//!
//! | process | opens a node of the rule's majors | anything else |
//! |---|---|---|
//! | of a real uid below the rule's `first_uid`: root, system accounts | allowed | allowed |
//! | of any other user, also as root of a user namespace | `EPERM` | allowed |
//!
//! Programs of several owners add up: a node opens if all of them allow it, so systemd's and the engine's own stay in
//! force. A filter stays with its group when the process that attached it ends. The kernel asks at open(2), not for
//! descriptors that are open already.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Which users a filter keeps from which device nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRule {
    /// Major numbers of character devices.
    pub majors: Vec<u32>,
    /// Users from here on.
    pub first_uid: u32,
}

/// Name of our programs, which distinguishes them from those of other owners.
const NAME: [u8; 16] = *b"divvy_devices\0\0\0";

/// The helper functions that the kernel offers ask for it; the program is part of this crate all the same.
const LICENSE: &CStr = c"GPL";

/// Programs that one group may have (`BPF_CGROUP_MAX_PROGS`). The kernel's bound: a list of the kernel never has more.
const MOST: usize = 64;

// Of linux/bpf.h.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const CGROUP_DEVICE_PROGRAM: u32 = 15;
const CGROUP_DEVICE_ATTACHMENT: u32 = 6;
const ALLOW_MULTI: u32 = 2;
const GET_CURRENT_UID_GID: u32 = 15;
const CHARACTER_DEVICE: u32 = 2;
/// Reading and writing, as against making a node. `BPF_DEVCG_ACC_READ` and `BPF_DEVCG_ACC_WRITE` of linux/bpf.h.
const READ_OR_WRITE: u32 = 6;

#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct ById {
    prog_id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The beginning of `struct bpf_prog_info`, to its name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Info {
    kind: u32,
    id: u32,
    /// A digest of the instructions.
    tag: [u8; 8],
    lengths: [u32; 2],
    code: [u64; 2],
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; 16],
}

/// Has this group our filter with this rule, and no other of ours. Between two rules both are in force.
///
/// # Errors
/// `EPERM` without `CAP_BPF` and `CAP_NET_ADMIN`, or without `CAP_SYS_ADMIN`; `EINVAL` and `ENOSYS` of kernels without
/// device filters (before Linux 4.15, or built without `CONFIG_CGROUP_BPF`).
pub fn attach_device_filter(group: BorrowedFd<'_>, rule: &DeviceRule) -> io::Result<()> {
    let program = load(rule)?;
    let tag = info(program.as_fd())?.tag;
    let (same, others): (Vec<_>, Vec<_>) = attached(group)?
        .into_iter()
        .partition(|(_, info)| info.tag == tag);
    if same.is_empty() {
        attach(PROG_ATTACH, group, program.as_fd())?;
    }
    others
        .iter()
        .try_for_each(|(other, _)| attach(PROG_DETACH, group, other.as_fd()))
}

/// Removes our filters from this group.
///
/// # Errors
/// As [`attach_device_filter`].
pub fn detach_device_filter(group: BorrowedFd<'_>) -> io::Result<()> {
    attached(group)?
        .iter()
        .try_for_each(|(program, _)| attach(PROG_DETACH, group, program.as_fd()))
}

/// Whether this group has our filter with this rule.
///
/// # Errors
/// As [`attach_device_filter`].
pub fn has_device_filter(group: BorrowedFd<'_>, rule: &DeviceRule) -> io::Result<bool> {
    let tag = info(load(rule)?.as_fd())?.tag;
    Ok(attached(group)?.iter().any(|(_, info)| info.tag == tag))
}

/// Our programs of a group.
fn attached(group: BorrowedFd<'_>) -> io::Result<Vec<(OwnedFd, Info)>> {
    let mut ids = [0_u32; MOST];
    let mut query = Query {
        target_fd: number(group),
        attach_type: CGROUP_DEVICE_ATTACHMENT,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: MOST as u32,
        ..Query::default()
    };
    // SAFETY: the kernel writes at most `prog_cnt` numbers to `ids`, which has room for them and lives on.
    unsafe { bpf(PROG_QUERY, &mut query)? };
    let mut ours = Vec::new();
    for prog_id in ids.into_iter().take(query.prog_cnt as usize) {
        let mut by_id = ById {
            prog_id,
            ..ById::default()
        };
        // SAFETY: it has no pointers.
        let program = match unsafe { bpf(PROG_GET_FD_BY_ID, &mut by_id) } {
            // SAFETY: the kernel has made this descriptor for this call.
            Ok(descriptor) => unsafe { OwnedFd::from_raw_fd(descriptor) },
            // Detached meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(error) => return Err(error),
        };
        let info = info(program.as_fd())?;
        if info.name == NAME {
            ours.push((program, info));
        }
    }
    Ok(ours)
}

fn load(rule: &DeviceRule) -> io::Result<OwnedFd> {
    let program = program(rule);
    let mut load = Load {
        prog_type: CGROUP_DEVICE_PROGRAM,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        prog_name: NAME,
        ..Load::default()
    };
    // SAFETY: the kernel copies the program, which is as long as said, and the license, which ends with a zero byte.
    let descriptor = unsafe { bpf(PROG_LOAD, &mut load)? };
    // SAFETY: the kernel has made this descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn attach(command: libc::c_int, group: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attach = Attach {
        target_fd: number(group),
        attach_bpf_fd: number(program),
        attach_type: CGROUP_DEVICE_ATTACHMENT,
        attach_flags: match command {
            PROG_ATTACH => ALLOW_MULTI,
            _ => 0,
        },
    };
    // SAFETY: it has no pointers.
    unsafe { bpf(command, &mut attach).map(drop) }
}

fn info(program: BorrowedFd<'_>) -> io::Result<Info> {
    let mut info = Info::default();
    let mut by_fd = InfoByFd {
        bpf_fd: number(program),
        info_len: size_of::<Info>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: the kernel writes at most `info_len` bytes to `info`, of which any are numbers, and reads as many.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut by_fd)? };
    Ok(info)
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().unsigned_abs()
}

/// bpf(2).
///
/// # Safety
/// `attributes` are those of the command, and what they point to is as long as they say and lives until this returns.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: by what the caller promises; the kernel takes fields beyond these as zero.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    match libc::c_int::try_from(done) {
        Ok(done @ 0..) => Ok(done),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Registers: the result, the context, and three that calls keep.
const R0: u8 = 0;
const R1: u8 = 1;
/// The first register that the kernel keeps over calls (bpf(2): R6 to R9).
const ACCESS: u8 = 6;
const MAJOR: u8 = 7;
const UID: u8 = 8;
const KIND: u8 = 9;

/// The filter. `struct bpf_cgroup_dev_ctx` has the access and the kind of the device in its first word, the major number
/// in its second.
fn program(rule: &DeviceRule) -> Vec<u64> {
    let majors = rule.majors.len() as i16;
    let mut program = vec![
        load_word(ACCESS, R1, 0),
        load_word(MAJOR, R1, 4),
        copy(KIND, ACCESS),
        and(KIND, 0xffff),
        shift_right(ACCESS, 16),
        and(ACCESS, READ_OR_WRITE),
        call(GET_CURRENT_UID_GID),
        // The low half is the uid.
        copy_half(UID, R0),
        set(R0, 1),
        // Lines to skip, to the exit behind the majors.
        jump_less(UID, rule.first_uid, majors + 2),
        jump_not_equal(KIND, CHARACTER_DEVICE, majors + 1),
        jump_equal(ACCESS, 0, majors),
    ];
    for (at, major) in (0..majors).zip(&rule.majors) {
        // To the line behind that exit.
        program.push(jump_equal(MAJOR, *major, majors - at));
    }
    program.extend([exit(), set(R0, 0), exit()]);
    program
}

/// An instruction (linux/bpf.h, `struct bpf_insn`) on a little-endian machine.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, value: u32) -> u64 {
    code as u64
        | (to as u64) << 8
        | (from as u64) << 12
        | (offset.cast_unsigned() as u64) << 16
        | (value as u64) << 32
}

const fn load_word(to: u8, from: u8, offset: i16) -> u64 {
    instruction(0x61, to, from, offset, 0)
}

const fn copy(to: u8, from: u8) -> u64 {
    instruction(0xbf, to, from, 0, 0)
}

const fn copy_half(to: u8, from: u8) -> u64 {
    instruction(0xbc, to, from, 0, 0)
}

const fn set(to: u8, value: u32) -> u64 {
    instruction(0xb7, to, 0, 0, value)
}

const fn and(to: u8, value: u32) -> u64 {
    instruction(0x57, to, 0, 0, value)
}

const fn shift_right(to: u8, value: u32) -> u64 {
    instruction(0x77, to, 0, 0, value)
}

const fn jump_equal(what: u8, value: u32, lines: i16) -> u64 {
    instruction(0x15, what, 0, lines, value)
}

const fn jump_not_equal(what: u8, value: u32, lines: i16) -> u64 {
    instruction(0x55, what, 0, lines, value)
}

const fn jump_less(what: u8, value: u32, lines: i16) -> u64 {
    instruction(0xa5, what, 0, lines, value)
}

const fn call(helper: u32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

const fn exit() -> u64 {
    instruction(0x95, 0, 0, 0, 0)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::{Path, PathBuf};

    use super::*;

    /// A control group that goes with the test; `None` where there can be none.
    struct Group(PathBuf);

    impl Group {
        fn new(name: &str) -> Option<Self> {
            let root = divvy_testkit::cgroup2_root()?;
            let path = root.join(format!("divvy-test-{name}-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            Some(Self(path))
        }
    }

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    /// What opening a node for reading answers a process of this user in this group.
    fn open_as(group: &Group, uid: u32, node: &Path) -> String {
        let script = format!(
            "echo $$ > {}/cgroup.procs; exec setpriv --reuid {uid} --regid {uid} --clear-groups sh -c ': < {}'",
            group.0.display(),
            node.display()
        );
        let output = std::process::Command::new("sh")
            .env("LC_ALL", "C")
            .args(["-c", &script])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        said.trim().rsplit(": ").next().unwrap().to_owned()
    }

    #[test]
    fn users_are_kept_from_the_rules_devices_and_from_no_other() {
        const USER: u32 = 60_101;
        const REFUSED: &str = "Operation not permitted";
        const NO_DRIVER: &str = "No such device or address";
        const OPENED: &str = "";
        let Some(group) = Group::new("devices") else {
            eprintln!("SKIPPED: no control group can be made here");
            return;
        };
        let folder = File::open(&group.0).unwrap();
        let rule = |majors: &[u32]| DeviceRule {
            majors: majors.to_vec(),
            first_uid: 1000,
        };
        // A major without a driver: opening answers ENXIO where it is allowed. Not in /tmp, which may forbid devices.
        let node = Path::new("/dev").join(format!("divvy-test-{}", std::process::id()));
        let mut attempt = attach_device_filter(folder.as_fd(), &rule(&[7, 195]));
        if attempt.is_ok() {
            let made = std::process::Command::new("mknod")
                .args(["-m", "666", node.to_str().unwrap(), "c", "195", "0"])
                .status();
            if !made.unwrap().success() {
                attempt = Err(io::Error::other("mknod"));
            }
        }
        if let Err(error) = attempt {
            eprintln!("SKIPPED: no device filters here: {error}");
            return;
        }
        let zero = Path::new("/dev/zero");
        let all = || {
            [
                open_as(&group, USER, &node),
                open_as(&group, 0, &node),
                open_as(&group, USER, zero),
            ]
        };
        assert_eq!(all(), [REFUSED, NO_DRIVER, OPENED]);
        assert!(has_device_filter(folder.as_fd(), &rule(&[7, 195])).unwrap());

        // Another rule takes its place, and the same one changes nothing.
        for _ in 0..2 {
            attach_device_filter(folder.as_fd(), &rule(&[7])).unwrap();
            assert_eq!(attached(folder.as_fd()).unwrap().len(), 1);
        }
        assert!(!has_device_filter(folder.as_fd(), &rule(&[7, 195])).unwrap());
        assert_eq!(all(), [NO_DRIVER, NO_DRIVER, OPENED]);

        attach_device_filter(folder.as_fd(), &rule(&[195])).unwrap();
        assert_eq!(all(), [REFUSED, NO_DRIVER, OPENED]);
        detach_device_filter(folder.as_fd()).unwrap();
        assert_eq!(all(), [NO_DRIVER, NO_DRIVER, OPENED]);
        fs::remove_file(&node).unwrap();
    }

    #[test]
    fn instructions_are_laid_out_as_the_kernel_has_them() {
        // BPF_JMP_IMM(BPF_JEQ, BPF_REG_7, 195, 2): code, registers, offset, value.
        let bytes = jump_equal(MAJOR, 195, 2).to_le_bytes();
        assert_eq!(bytes, [0x15, 0x07, 2, 0, 195, 0, 0, 0]);
        let bytes = load_word(ACCESS, R1, 4).to_le_bytes();
        assert_eq!(bytes, [0x61, 0x16, 4, 0, 0, 0, 0, 0]);
    }
}
