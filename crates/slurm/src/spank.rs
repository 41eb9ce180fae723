//! The functions of Slurm that the plugin calls, as spank(7) describes them.
//!
//! Nothing here comes from Slurm's headers. The functions are found in the loading program with dlsym(3), so the
//! library links to none of Slurm's. This module and [`crate::plugin`] are the crate's fence: no other one is unsafe.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::OnceLock;

/// What Slurm passes to a hook and gets back in each call.
pub type Job = *mut c_void;

pub const SUCCESS: c_int = 0;

/// Numbers of what `spank_get_item` answers, each a `uint32_t`.
const JOB_ID: c_int = 2;
const LOCAL_TASK_COUNT: c_int = 6;

/// The longest variable of a job that the plugin reads. The kernel's bound of one argument or variable
/// (`MAX_ARG_STRLEN`, execve(2)).
const LONGEST_VARIABLE: usize = 128 << 10;

/// The address of a function of the loading program; null without one.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string, and dlsym keeps nothing of it.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

type GetItem = unsafe extern "C" fn(Job, c_int, ...) -> c_int;
type GetVariable = unsafe extern "C" fn(Job, *const c_char, *mut c_char, c_int) -> c_int;
type SetVariable = unsafe extern "C" fn(Job, *const c_char, *const c_char, c_int) -> c_int;
type Register = unsafe extern "C" fn(Job, *const SpankOption) -> c_int;
type IsRemote = unsafe extern "C" fn(Job) -> c_int;
type Log = unsafe extern "C" fn(*const c_char, ...);

/// Slurm's functions; one that the program lacks is `None`.
struct Slurm {
    get_item: Option<GetItem>,
    get_variable: Option<GetVariable>,
    set_variable: Option<SetVariable>,
    set_for_prolog: Option<SetVariable>,
    register: Option<Register>,
    is_remote: Option<IsRemote>,
    log: Option<Log>,
}

fn slurm() -> &'static Slurm {
    static SLURM: OnceLock<Slurm> = OnceLock::new();
    SLURM.get_or_init(|| {
        let log = find(c"slurm_spank_log");
        let log = if log.is_null() {
            find(c"slurm_error")
        } else {
            log
        };
        // SAFETY: each name is that of a function with this prototype in spank(7); null becomes `None`.
        unsafe {
            Slurm {
                get_item: transmute::<*mut c_void, Option<GetItem>>(find(c"spank_get_item")),
                get_variable: transmute::<*mut c_void, Option<GetVariable>>(find(c"spank_getenv")),
                set_variable: transmute::<*mut c_void, Option<SetVariable>>(find(c"spank_setenv")),
                set_for_prolog: transmute::<*mut c_void, Option<SetVariable>>(find(
                    c"spank_job_control_setenv",
                )),
                register: transmute::<*mut c_void, Option<Register>>(find(
                    c"spank_option_register",
                )),
                is_remote: transmute::<*mut c_void, Option<IsRemote>>(find(c"spank_remote")),
                log: transmute::<*mut c_void, Option<Log>>(log),
            }
        }
    })
}

/// `struct spank_option` of spank(7).
#[repr(C)]
pub struct SpankOption {
    pub(crate) name: *const c_char,
    pub(crate) argument: *const c_char,
    pub(crate) usage: *const c_char,
    pub(crate) has_argument: c_int,
    pub(crate) value: c_int,
    pub(crate) callback: extern "C" fn(c_int, *const c_char, c_int) -> c_int,
}

// SAFETY: its pointers are those of string literals.
unsafe impl Sync for SpankOption {}

/// A job, during a hook.
pub struct Handle(pub(crate) Job);

impl Handle {
    fn number(&self, item: c_int) -> Option<u32> {
        let mut answer = u32::MAX;
        let get = slurm().get_item?;
        // SAFETY: the handle is the hook's own, and these items are written as one `uint32_t`.
        let code = unsafe { get(self.0, item, &raw mut answer) };
        (code == SUCCESS).then_some(answer)
    }

    pub fn job(&self) -> Option<u32> {
        self.number(JOB_ID)
    }

    /// Number of the step's tasks on this node.
    pub fn local_tasks(&self) -> Option<u32> {
        self.number(LOCAL_TASK_COUNT)
    }

    /// Whether this is the node's side of a step, and not srun or sbatch.
    pub fn is_remote(&self) -> bool {
        // SAFETY: the handle is the hook's own.
        (slurm().is_remote).is_some_and(|is_remote| unsafe { is_remote(self.0) } == 1)
    }

    /// A variable of the task; `None` without one, and for one that is not text.
    pub fn variable(&self, name: &str) -> Option<String> {
        let get = slurm().get_variable?;
        let name = CString::new(name).ok()?;
        let mut size = 4096;
        while size <= LONGEST_VARIABLE {
            let mut buffer = vec![0_u8; size];
            let length = c_int::try_from(size).ok()?;
            // SAFETY: the buffer has as many bytes as stated, and Slurm ends the text in it with a zero.
            let code = unsafe { get(self.0, name.as_ptr(), buffer.as_mut_ptr().cast(), length) };
            let text = CStr::from_bytes_until_nul(&buffer).ok();
            let text = text.and_then(|text| text.to_str().ok());
            match code {
                SUCCESS => return text.map(str::to_owned),
                _ if text.is_some_and(str::is_empty) => return None,
                _ => size *= 4,
            }
        }
        None
    }

    /// Sets a variable of the task; whether Slurm took it.
    pub fn set(&self, name: &str, value: &str) -> bool {
        self.set_with(slurm().set_variable, name, value)
    }

    /// Sets a variable of Prolog and Epilog, where Slurm calls it `SPANK_NAME`; whether Slurm took it.
    pub fn set_for_prolog(&self, name: &str, value: &str) -> bool {
        self.set_with(slurm().set_for_prolog, name, value)
    }

    fn set_with(&self, set: Option<SetVariable>, name: &str, value: &str) -> bool {
        let (Some(set), Ok(name), Ok(value)) = (set, CString::new(name), CString::new(value))
        else {
            return false;
        };
        // SAFETY: the handle is the hook's own, and Slurm copies both strings.
        unsafe { set(self.0, name.as_ptr(), value.as_ptr(), 1) == SUCCESS }
    }

    pub(crate) fn register(&self, option: &'static SpankOption) {
        if let Some(register) = slurm().register {
            // SAFETY: the option is static. Contexts without options answer an error, which changes nothing.
            unsafe { register(self.0, &raw const *option) };
        }
    }
}

/// Writes a line for the user: on stderr of sbatch and srun, and of the task.
pub fn say(line: &str) {
    // A value of the user's own could control a terminal.
    let line = line.replace(char::is_control, " ");
    let line = CString::new(line).unwrap_or_default();
    if let Some(log) = slurm().log {
        // SAFETY: the format takes one C string.
        unsafe { log(c"divvy: %s".as_ptr(), line.as_ptr()) };
    }
}
