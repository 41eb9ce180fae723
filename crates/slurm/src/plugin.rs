//! The names that Slurm looks up in the plugin, as spank(7) describes them; each calls its hook.

use std::ffi::{CStr, c_char, c_int, c_long};
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::hooks;
use crate::spank::{Handle, Job, SUCCESS, SpankOption, find, say};

const FAILED: c_int = -1;

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
        let text = if argument.is_null() {
            None
        } else {
            // SAFETY: Slurm passes the argument of the option, a C string that lives during the call.
            unsafe { CStr::from_ptr(argument) }.to_str().ok()
        };
        hooks::take_gpu_memory(text.unwrap_or_default())
    })
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
    if words.is_null() {
        Vec::new()
    } else {
        (0..count).map(word).collect()
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_init(job: Job, _count: c_int, _words: *mut *mut c_char) -> c_int {
    guarded(|| {
        Handle(job).register(&GPU_MEMORY);
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
