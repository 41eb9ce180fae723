//! Touch stubs: exported functions without a prototype that wake a parked job and jump to the driver's function of the
//! same name, with all arguments in place. `list.rs` names them: the functions that wake ([`park::wakes`]) and have no
//! hook.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicPtr, Ordering::Release};

use divvy_driver::sys::cuda::CUresult;

use crate::park;
use crate::process;
use crate::route::function::{LazySymbol, Library};

mod list;

pub use list::{TOUCHES, stubs};

/// What a touch stub knows of its function.
#[repr(C)]
pub struct Touch {
    /// Where the stub jumps: [`enter_slowly`] until the function was looked up. The stub reads it at offset 0.
    target: AtomicPtr<c_void>,
    pub real: LazySymbol,
}

impl Touch {
    /// `name` has a terminating NUL.
    const fn new(name: &'static str) -> Self {
        Self {
            target: AtomicPtr::new(enter_slowly as *mut c_void),
            real: LazySymbol::new(Library::cuda, name),
        }
    }
}

/// The answer of a function that this driver does not have.
extern "C" fn absent() -> CUresult {
    CUresult::NOT_FOUND
}

/// Waits while the job is parked; returns the address to jump to.
extern "C" fn enter(touch: &'static Touch) -> *mut c_void {
    let waited = catch_unwind(|| park::hold(touch.real.name));
    if waited.is_err() {
        process::alarm();
    }
    let target = touch.real.address().unwrap_or(absent as *mut c_void);
    touch.target.store(target, Release);
    target
}

/// The way of a stub that waits, or calls its function for the first time: keeps the arguments in registers over
/// [`enter`]. The stub leaves the address of its [`Touch`] in `r11`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn enter_slowly() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 176",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "movups [rsp + 48], xmm0",
        "movups [rsp + 64], xmm1",
        "movups [rsp + 80], xmm2",
        "movups [rsp + 96], xmm3",
        "movups [rsp + 112], xmm4",
        "movups [rsp + 128], xmm5",
        "movups [rsp + 144], xmm6",
        "movups [rsp + 160], xmm7",
        "mov rdi, r11",
        "call {enter}",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "movups xmm0, [rsp + 48]",
        "movups xmm1, [rsp + 64]",
        "movups xmm2, [rsp + 80]",
        "movups xmm3, [rsp + 96]",
        "movups xmm4, [rsp + 112]",
        "movups xmm5, [rsp + 128]",
        "movups xmm6, [rsp + 144]",
        "movups xmm7, [rsp + 160]",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "jmp rax",
        ".cfi_endproc",
        enter = sym enter,
    )
}

/// The same; the stub leaves the address in `x17`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn enter_slowly() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-224]!",
        ".cfi_def_cfa_offset 224",
        ".cfi_offset x29, -224",
        ".cfi_offset x30, -216",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov x0, x17",
        "bl {enter}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldr x8, [sp, #80]",
        "ldp q0, q1, [sp, #96]",
        "ldp q2, q3, [sp, #128]",
        "ldp q4, q5, [sp, #160]",
        "ldp q6, q7, [sp, #192]",
        "ldp x29, x30, [sp], #224",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "br x16",
        ".cfi_endproc",
        enter = sym enter,
    )
}

/// Makes the touch stubs from their names, the table of them, and the macro `export_touches!`, which exports them. The
/// dollar in front is for that macro.
macro_rules! touch_stubs {
    ($dollar:tt $($name:ident)*) => {
        /// Every touch stub, sorted by name.
        pub static TOUCHES: &[$crate::route::hook::Hook] = &[$(
            $crate::route::hook::Hook {
                real: &slots::$name.real,
                function: $crate::route::hook::Address(stubs::$name as *const std::ffi::c_void),
                does: "",
            },
        )*];

        #[allow(non_upper_case_globals)]
        mod slots {
            $(pub static $name: $crate::route::touch::Touch = $crate::route::touch::Touch::new(concat!(stringify!($name), "\0"));)*
        }

        #[allow(non_snake_case)]
        pub mod stubs {
            $(
                /// # Safety
                /// As for the driver's function of this name.
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    #[cfg(target_arch = "x86_64")]
                    std::arch::naked_asm!(
                        "endbr64",
                        "mov rax, qword ptr [rip + {gate}]",
                        "movabs r11, {parked}",
                        "cmp qword ptr [rax], r11",
                        "lea r11, [rip + {touch}]",
                        "je {slow}",
                        "jmp qword ptr [r11]",
                        gate = sym $crate::park::GATE,
                        parked = const divvy_ledger::PARKED_WORD,
                        touch = sym super::slots::$name,
                        slow = sym $crate::route::touch::enter_slowly,
                    );
                    #[cfg(target_arch = "aarch64")]
                    std::arch::naked_asm!(
                        "hint #34", // bti c
                        "adrp x16, {gate}",
                        "ldr x16, [x16, :lo12:{gate}]",
                        "ldr x16, [x16]",
                        "mov x17, #1", // PARKED_WORD
                        "movk x17, #0xc000, lsl #48",
                        "cmp x16, x17",
                        "adrp x17, {touch}",
                        "add x17, x17, :lo12:{touch}",
                        "b.ne 2f",
                        "b {slow}",
                        "2:",
                        "ldr x16, [x17]",
                        "br x16",
                        gate = sym $crate::park::GATE,
                        touch = sym super::slots::$name,
                        slow = sym $crate::route::touch::enter_slowly,
                    );
                }
            )*
        }

        /// Exports the touch stubs from the library that uses this macro.
        #[macro_export]
        macro_rules! export_touches {
            () => { $($crate::jump!($name => $crate::stubs::$name);)* };
        }
    };
}
use touch_stubs;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use divvy_driver::sys::symbols;

    use super::*;
    use crate::table::HOOKS;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/route/touch/list.rs");

    /// The functions that wake a parked job and have no hook.
    fn wanted() -> BTreeSet<&'static str> {
        let hooked: BTreeSet<_> = HOOKS
            .iter()
            .filter_map(|hook| hook.real.name.to_str().ok())
            .collect();
        let all = symbols::CUDA.iter().copied();
        all.filter(|name| park::wakes(name) && !hooked.contains(name))
            .collect()
    }

    #[test]
    fn every_function_that_wakes_a_parked_job_has_a_hook_or_a_touch_stub() {
        let wanted = wanted();
        if std::env::var_os("DIVVY_RECORD").is_some() {
            let text = fs::read_to_string(FILE).unwrap();
            let (before, _) = text.split_once("touch_stubs! { $\n").unwrap();
            let mut lines = vec![String::new()];
            for name in &wanted {
                if lines
                    .last()
                    .is_some_and(|line| line.len() + name.len() > 110)
                {
                    lines.push(String::new());
                }
                let line = lines.last_mut().unwrap();
                *line += if line.is_empty() { "    " } else { " " };
                *line += name;
            }
            fs::write(
                FILE,
                format!("{before}touch_stubs! {{ $\n{}\n}}\n", lines.join("\n")),
            )
            .unwrap();
            return;
        }
        let listed: Vec<_> = TOUCHES
            .iter()
            .filter_map(|one| one.real.name.to_str().ok())
            .collect();
        assert!(listed.is_sorted(), "`named` searches by halves");
        assert!(
            listed.iter().copied().collect::<BTreeSet<_>>() == wanted,
            "`cargo xtask bless` writes route/touch/list.rs anew"
        );
    }

    #[test]
    fn the_word_in_the_stubs_is_that_of_the_ledger() {
        assert_eq!(divvy_ledger::PARKED_WORD, 0xc000_0000_0000_0001);
    }
}
