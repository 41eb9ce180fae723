//! Slurm's C interface of plugins, as spank(7) describes it: the names that Slurm looks up in the plugin, and the few
//! functions of Slurm that the plugin calls.
//!
//! Nothing here comes from Slurm's headers. The functions are found in the loading program with dlsym(3), so the
//! library links to none of Slurm's. This module is the crate's fence: no other one is unsafe.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::hooks;

/// What Slurm passes to a hook and gets back in each call.
type Job = *mut c_void;

const SUCCESS: c_int = 0;
const FAILED: c_int = -1;

/// Numbers of what `spank_get_item` answers, each a `uint32_t`.
const JOB_ID: c_int = 2;
const LOCAL_TASK_COUNT: c_int = 6;

/// The longest variable of a job that the plugin reads.
const LONGEST_VARIABLE: usize = 128 << 10;

#[unsafe(export_name = "plugin_name")]
pub static PLUGIN_NAME: [u8; 6] = *b"divvy\0";
#[unsafe(export_name = "plugin_type")]
pub static PLUGIN_TYPE: [u8; 6] = *b"spank\0";
/// Slurm loads only plugins of its own release: `year << 16 | month << 8`, set when the library is loaded.
#[unsafe(export_name = "plugin_version")]
pub static PLUGIN_VERSION: AtomicU32 = AtomicU32::new(version(22, 5));
#[unsafe(export_name = "spank_plugin_version")]
pub static INTERFACE_VERSION: u32 = 1;

/// The number of libslurm, which `slurm_api_version` answers shifted by 16, and the release with it. The interface of
/// plugins is the same in these; docs/slurm.md has the tried ones. The oldest is first.
const RELEASES: [(c_long, u32); 9] = [
    (37, version(21, 8)),
    (38, version(22, 5)),
    (39, version(23, 2)),
    (40, version(23, 11)),
    (41, version(24, 5)),
    (42, version(24, 11)),
    (43, version(25, 5)),
    (44, version(25, 11)),
    (45, version(26, 5)),
];

const fn version(year: u32, month: u32) -> u32 {
    year << 16 | month << 8
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Takes the release of the program that loads the library.
extern "C" fn at_load() {
    // SAFETY: libslurm documents `long slurm_api_version(void)`.
    let answer: Option<extern "C" fn() -> c_long> =
        unsafe { transmute(find(c"slurm_api_version")) };
    let Some(number) = answer.map(|answer| answer() >> 16) else {
        return;
    };
    match RELEASES.iter().find(|(api, _)| *api == number) {
        Some((_, release)) => PLUGIN_VERSION.store(*release, Ordering::Relaxed),
        // Slurm refuses the plugin then, and names only the release that the plugin seems to have.
        None => {
            let [(_, oldest), .., (_, newest)] = RELEASES;
            say(&format!(
                "this plugin serves Slurm {} to {}, and not the release with libslurm {number}: install a newer divvy",
                shown(oldest),
                shown(newest)
            ));
        }
    }
}

/// `26.05`.
fn shown(release: u32) -> String {
    format!("{}.{:02}", release >> 16, release >> 8 & 0xff)
}

/// The address of a function of the loading program; null without one.
fn find(name: &CStr) -> *mut c_void {
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
    name: *const c_char,
    argument: *const c_char,
    usage: *const c_char,
    has_argument: c_int,
    value: c_int,
    callback: extern "C" fn(c_int, *const c_char, c_int) -> c_int,
}

// SAFETY: its pointers are those of string literals.
unsafe impl Sync for SpankOption {}

static GPU_MEMORY: SpankOption = SpankOption {
    name: c"gpu-memory".as_ptr(),
    argument: c"SIZE".as_ptr(),
    usage: c"memory of each GPU of the job that its processes may allocate, such as 8G (Divvy)"
        .as_ptr(),
    has_argument: 1,
    value: 0,
    callback: gpu_memory,
};

extern "C" fn gpu_memory(_value: c_int, argument: *const c_char, _remote: c_int) -> c_int {
    guarded(|| {
        let text = match argument.is_null() {
            true => None,
            // SAFETY: Slurm passes the argument of the option, a C string that lives during the call.
            false => unsafe { CStr::from_ptr(argument) }.to_str().ok(),
        };
        hooks::take_gpu_memory(text.unwrap_or_default())
    })
}

/// A job, during a hook.
pub struct Handle(Job);

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

    fn register(&self) {
        if let Some(register) = slurm().register {
            // SAFETY: the option is static. Contexts without options answer an error, which changes nothing.
            unsafe { register(self.0, &raw const GPU_MEMORY) };
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

/// Runs a hook: no panic may unwind into Slurm.
fn guarded(hook: impl FnOnce() -> bool) -> c_int {
    match catch_unwind(AssertUnwindSafe(hook)) {
        Ok(true) => SUCCESS,
        Ok(false) => FAILED,
        Err(_) => {
            say("the plugin failed; nothing was started");
            FAILED
        }
    }
}

/// The plugin's arguments in plugstack.conf.
fn arguments(count: c_int, words: *mut *mut c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or_default();
    let word = |at: usize| {
        // SAFETY: Slurm passes as many C strings as it counts, and they live during the call.
        let word: *const c_char = unsafe { *words.add(at) };
        if word.is_null() {
            return String::new();
        }
        // SAFETY: see above.
        let word = unsafe { CStr::from_ptr(word) };
        word.to_string_lossy().into_owned()
    };
    match words.is_null() {
        true => Vec::new(),
        false => (0..count).map(word).collect(),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init(job: Job, _count: c_int, _words: *mut *mut c_char) -> c_int {
    guarded(|| {
        Handle(job).register();
        true
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init_post_opt(
    job: Job,
    _count: c_int,
    _words: *mut *mut c_char,
) -> c_int {
    guarded(|| hooks::after_options(&Handle(job)))
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_init_privileged(
    job: Job,
    count: c_int,
    words: *mut *mut c_char,
) -> c_int {
    guarded(|| hooks::begin_task(&Handle(job), &arguments(count, words)))
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_task_exit(job: Job, count: c_int, words: *mut *mut c_char) -> c_int {
    guarded(|| hooks::end_task(&Handle(job), &arguments(count, words)))
}
