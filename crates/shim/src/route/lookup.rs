//! The `dlsym` override: a program that looks up a hooked function gets the hook.
//!
//! Two facts shape this module. glibc resolves `RTLD_NEXT` and `RTLD_DEFAULT` by the address its caller returns to, so
//! everything that is not ours must reach the real `dlsym` by a jump, with the caller's own frame on top. And `dlsym` is
//! called by allocators and by Rust's standard library while they start, so nothing here may allocate, take a lock of our
//! own, or register a thread-local destructor.
//!
//! ```text
//! dlsym(handle, name) ── not cu…/nv… ───────────────► jump to the real one
//!        └─ cu…/nv… ── routed() ── a hook's address ─► return it
//!                         └─ null ───────────────────► jump to the real one
//! ```

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::process;
use crate::route::{elf, hook, unknown};

/// The version of `dlsym` in the oldest glibc of the architecture (glibc's `libc.abilist`, `dlsym F`).
#[cfg(target_arch = "x86_64")]
const OLDEST: &CStr = c"GLIBC_2.2.5";
#[cfg(target_arch = "aarch64")]
const OLDEST: &CStr = c"GLIBC_2.17";

/// Address of the real `dlsym`; null until the first call.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The program's `dlsym`, in the form that overrides it.
///
/// # Safety
/// As for the C library's own.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "test rsi, rsi",
        "jz 4f",
        "mov al, byte ptr [rsi]",
        "cmp al, 0x63", // c
        "jne 2f",
        "cmp byte ptr [rsi + 1], 0x75", // u
        "je 3f",
        "jmp 4f",
        "2:",
        "cmp al, 0x6e", // n
        "jne 4f",
        "cmp byte ptr [rsi + 1], 0x76", // v
        "jne 4f",
        "3:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {routed}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jnz 6f",
        "4:",
        "mov rax, qword ptr [rip + {real}]",
        "test rax, rax",
        "jz 5f",
        "jmp rax",
        "5:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {find}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 6f",
        "jmp rax",
        "6:",
        "ret",
        ".cfi_endproc",
        routed = sym routed,
        real = sym REAL,
        find = sym find,
    )
}

/// The same.
///
/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "hint #34", // bti c
        "cbz x1, 4f",
        "ldrb w9, [x1]",
        "cmp w9, #0x63", // c
        "b.ne 2f",
        "ldrb w9, [x1, #1]",
        "cmp w9, #0x75", // u
        "b.eq 3f",
        "b 4f",
        "2:",
        "cmp w9, #0x6e", // n
        "b.ne 4f",
        "ldrb w9, [x1, #1]",
        "cmp w9, #0x76", // v
        "b.ne 4f",
        "3:",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "bl {routed}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbnz x16, 6f",
        "4:",
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "cbz x16, 5f",
        "br x16",
        "5:",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_def_cfa_offset 32",
        ".cfi_offset x29, -32",
        ".cfi_offset x30, -24",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "bl {find}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbz x16, 6f",
        "br x16",
        "6:",
        "mov x0, x16",
        "ret",
        ".cfi_endproc",
        routed = sym routed,
        real = sym REAL,
        find = sym find,
    )
}

/// The hook that answers for `name` under `handle`, or null when the real `dlsym` shall answer.
///
/// An explicit handle is asked first and its answer routed by address, so a library that brings its own function of that
/// name keeps it, and a missing symbol stays missing. `RTLD_DEFAULT` finds our export by itself. `RTLD_NEXT` would find the
/// driver behind us when the caller was loaded after us, so it gets the hook as soon as a driver is there to be called.
unsafe extern "C" fn routed(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: dlsym's caller passes a NUL-terminated name; the assembly has seen that it is not null.
    let called = unsafe { CStr::from_ptr(name) };
    let is_explicit = handle != libc::RTLD_DEFAULT && handle != libc::RTLD_NEXT;
    let Some(hook) = hook::named(called) else {
        if is_explicit && unknown::is_unknown(called) && !real(handle, name).is_null() {
            process::alarm();
        }
        return null_mut();
    };
    if handle == libc::RTLD_DEFAULT {
        return null_mut();
    }
    if handle == libc::RTLD_NEXT {
        return if elf::driver_is_loaded() {
            hook.function()
        } else {
            null_mut()
        };
    }
    let found = real(handle, name);
    if found.is_null() {
        null_mut()
    } else {
        hook.route(found)
    }
}

/// Asks the real `dlsym`. Only for explicit handles: what the caller's address decides would be decided by ours.
pub fn real(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let address = match REAL.load(Relaxed) {
        null if null.is_null() => find(),
        address => address,
    };
    if address.is_null() {
        return null_mut();
    }
    // SAFETY: `find` stores only the address of a function of dlsym's type.
    let dlsym: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { std::mem::transmute(address) };
    // SAFETY: callers pass a handle the loader gave out and a NUL-terminated name.
    unsafe { dlsym(handle, name) }
}

/// Finds the C library's `dlsym` and remembers it. `dlvsym` with a version passes over other overrides, which carry none.
/// glibc moved the symbol in 2.34; one that lacks both versions leaves null, and then every lookup answers null.
extern "C" fn find() -> *mut c_void {
    for version in [c"GLIBC_2.34", OLDEST] {
        // SAFETY: two NUL-terminated names; RTLD_NEXT is resolved for this library, which the C library follows.
        let address = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !address.is_null() {
            REAL.store(address, Relaxed);
            return address;
        }
    }
    null_mut()
}
