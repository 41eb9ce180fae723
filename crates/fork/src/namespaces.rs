//! A seccomp filter that refuses new user namespaces (seccomp(2), user_namespaces(7)).
//!
//! A user namespace makes any user root of mounts of its own, with which a job could lay the driver over its limiter. The filter is
//! for a thread without capabilities; what it starts inherits it, and cannot take it off.
//!
//! | call | answer |
//! |---|---|
//! | `clone`, `unshare` with `CLONE_NEWUSER` | `EPERM`, as where the kernel allows no user namespaces |
//! | `setns` | `EPERM`: without capabilities it leads nowhere but into a user namespace of the same user |
//! | `clone3` | `ENOSYS`: its flags lie in memory, which a filter does not see; C libraries call `clone` then |
//! | any call of another architecture than those of [`ABIS`], or of x32 | `ENOSYS` |

use std::io;

/// linux/sched.h; libc's constant is an `int`.
const CLONE_NEWUSER: u32 = 0x1000_0000;
/// The same number in every architecture since calls were numbered alike (Linux 5.3).
const CLONE3: u32 = 435;
/// Calls of x32 have this bit, and the architecture of x86-64.
const X32: u32 = 0x4000_0000;

/// How an architecture numbers the calls (asm/unistd.h of each); `arch` is its `AUDIT_ARCH_…` of linux/audit.h.
struct Abi {
    arch: u32,
    clone: u32,
    unshare: u32,
    setns: u32,
}

/// The architectures that machines with NVIDIA GPUs have, each with the 32-bit one that its kernel runs too.
const ABIS: [Abi; 4] = [
    // x86-64, i386
    abi(0xc000_003e, 56, 272, 308),
    abi(0x4000_0003, 120, 310, 346),
    // arm64, arm
    abi(0xc000_00b7, 220, 97, 268),
    abi(0x4000_0028, 120, 337, 375),
];

const fn abi(arch: u32, clone: u32, unshare: u32, setns: u32) -> Abi {
    Abi {
        arch,
        clone,
        unshare,
        setns,
    }
}

/// Refuses new user namespaces to this thread, for good, and to what it starts from now on.
///
/// # Errors
/// `EACCES` of a thread that has neither `no_new_privs` nor `CAP_SYS_ADMIN`; `EINVAL` of kernels without filters.
pub fn refuse_user_namespaces() -> io::Result<()> {
    let mut program = program();
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: seccomp(2) copies the program, which is as long as said and lives until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const filter,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Offsets in `struct seccomp_data`: the call's number, its architecture, the low half of its first argument (little-endian).
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FLAGS: u32 = 16;

/// The filter: for each architecture one block, which is skipped by calls of the others and left by none of its own.
fn program() -> Vec<libc::sock_filter> {
    let mut program = vec![load(ARCH)];
    for abi in &ABIS {
        let block = [
            load(NUMBER),
            // Lines to skip where it is so, and where it is not: to the check of flags, and to the three answers below.
            jump(libc::BPF_JGE, X32, 8, 0),
            jump(libc::BPF_JEQ, CLONE3, 7, 0),
            jump(libc::BPF_JEQ, abi.setns, 5, 0),
            jump(libc::BPF_JEQ, abi.clone, 1, 0),
            jump(libc::BPF_JEQ, abi.unshare, 0, 2),
            load(FLAGS),
            jump(libc::BPF_JSET, CLONE_NEWUSER, 1, 0),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(refusal(libc::EPERM)),
            answer(refusal(libc::ENOSYS)),
        ];
        program.push(jump(libc::BPF_JEQ, abi.arch, 0, block.len() as u8));
        program.extend(block);
    }
    program.push(answer(refusal(libc::ENOSYS)));
    program
}

fn refusal(error: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | error.unsigned_abs()
}

fn load(offset: u32) -> libc::sock_filter {
    line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn jump(test: u32, with: u32, yes: u8, no: u8) -> libc::sock_filter {
    line(libc::BPF_JMP | test | libc::BPF_K, with, yes, no)
}

fn answer(action: u32) -> libc::sock_filter {
    line(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

fn line(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use divvy_testkit::Bounded as _;

    use super::*;

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
    const SIGCHLD: u32 = libc::SIGCHLD as u32;

    /// What the filter answers to a call, as the kernel would run it.
    fn answered(arch: u32, number: u32, first: u32) -> u32 {
        let (mut value, mut at) = (0, 0);
        let program = program();
        loop {
            let line = program[at];
            at += 1;
            let tested = match u32::from(line.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    value = match line.k {
                        NUMBER => number,
                        ARCH => arch,
                        FLAGS => first,
                        other => panic!("offset {other}"),
                    };
                    continue;
                }
                code if code == libc::BPF_RET | libc::BPF_K => return line.k,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => value == line.k,
                code if code == libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K => value >= line.k,
                code if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => value & line.k != 0,
                other => panic!("code {other:#x}"),
            };
            at += usize::from(if tested { line.jt } else { line.jf });
        }
    }

    #[test]
    fn every_way_into_a_user_namespace_is_refused_in_every_architecture() {
        let (eperm, enosys) = (refusal(libc::EPERM), refusal(libc::ENOSYS));
        for abi in &ABIS {
            let ask = |number, first| answered(abi.arch, number, first);
            for number in [abi.clone, abi.unshare] {
                assert_eq!(ask(number, CLONE_NEWUSER), eperm);
                assert_eq!(ask(number, CLONE_NEWUSER | SIGCHLD), eperm);
                assert_eq!(ask(number, SIGCHLD), ALLOWED);
                assert_eq!(ask(number, !CLONE_NEWUSER), ALLOWED);
            }
            assert_eq!(ask(abi.setns, 0), eperm);
            assert_eq!(ask(CLONE3, 0), enosys);
            assert_eq!(ask(abi.clone | X32, 0), enosys);
            assert_eq!(ask(1, CLONE_NEWUSER), ALLOWED);
        }
        assert_eq!(answered(0xdead, 1, 0), enosys);
    }

    /// Asks for a user namespace through i386's call 310, and ends with the error's number.
    #[cfg(target_arch = "x86_64")]
    const THROUGH_I386: &str = r#"
int main(void)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(310L), "b"(0x10000000L) : "memory", "r8", "r9", "r10", "r11");
    return (int)-result;
}
"#;

    /// Does this in a thread that has the filter.
    fn refused<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let filtered = || {
            // SAFETY: prctl(2) with numbers, about this thread alone.
            let kept = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            assert_eq!(kept, 0);
            refuse_user_namespaces().expect("the kernel has filters");
            work()
        };
        std::thread::scope(|scope| {
            scope
                .spawn(filtered)
                .join()
                .expect("the work does not panic")
        })
    }

    fn said(program: &str, words: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(program).args(words).output_bounded();
        let output = output.expect("the program starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        (output.status.code(), errors.into_owned())
    }

    #[test]
    fn a_program_with_the_filter_gets_no_user_namespace_and_everything_else() {
        let namespace = ["--user", "--map-root-user", "true"];
        let (code, errors) = refused(|| said("unshare", &namespace));
        assert_ne!(code, Some(0));
        assert!(errors.contains("Operation not permitted"), "{errors}");
        if said("unshare", &namespace).0 != Some(0) {
            eprintln!("SKIPPED: no user namespace may be made here without the filter either");
        }
        // Threads and processes are begun by clone3 where it is there.
        let thread = || std::thread::spawn(|| 7).join().expect("it does not panic");
        assert_eq!(refused(thread), 7);
        let pipeline = [
            "-c",
            "(echo one; echo two) | while read line; do :; done & wait",
        ];
        assert_eq!(refused(|| said("sh", &pipeline)), (Some(0), String::new()));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_program_with_the_filter_gets_no_user_namespace_through_i386_either() {
        use std::os::unix::process::ExitStatusExt as _;
        let source = divvy_testkit::written("through_i386.c", THROUGH_I386);
        let program = divvy_testkit::compiled(&source, "through_i386", &[]);
        let status = || Command::new(&program).wait_bounded().expect("it starts");
        if status().signal() == Some(libc::SIGSEGV) {
            eprintln!("SKIPPED: this kernel has no calls of i386");
            return;
        }
        assert_eq!(refused(status).code(), Some(libc::EPERM));
    }

    #[test]
    fn the_numbers_of_calls_are_this_architectures() {
        let numbers = |abi: &Abi| [abi.clone, abi.unshare, abi.setns].map(i64::from);
        let here = [libc::SYS_clone, libc::SYS_unshare, libc::SYS_setns];
        let own = if cfg!(target_arch = "aarch64") { 2 } else { 0 };
        assert_eq!(numbers(&ABIS[own]), here);
        assert_eq!(i64::from(CLONE3), libc::SYS_clone3);
    }
}
