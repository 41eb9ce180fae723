//! `cargo +nightly fuzz run hooks`, after `cargo build -p divvy-sim`: the limiter's hooks over the simulated driver, with arguments
//! that make no sense.
#![no_main]

#[path = "../bodies/hooks.rs"]
mod hooks;
#[allow(dead_code, reason = "shared with the other body")]
#[path = "../bodies/input.rs"]
mod input;

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

use divvy_ledger::{Control, GpuSpec, Slice, SliceSpec};

const SIMULATOR: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../target/debug/libdivvy_sim.so"
);
const LIMIT: u64 = 1 << 30;
const CONTEXT: u64 = 256 << 20;

/// A simulated GPU, and this process in a slice of it.
struct Bench {
    driver: usize,
    hooks: HashMap<&'static str, usize>,
    slice: Slice,
}

fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder").keep();
        let config = folder.join("sim.toml");
        let text = format!("context_mib = {}\n", CONTEXT >> 20);
        std::fs::write(&config, text).expect("a configuration");
        let set = |name: &str, value: &Path| {
            // SAFETY: no other thread runs yet.
            unsafe { std::env::set_var(name, value) };
        };
        set("DIVVY_SIM", Path::new("a100-80gb:1"));
        set("DIVVY_SIM_STATE", &folder.join("state"));
        set("DIVVY_SIM_CONFIG", &config);
        let name = CString::new(SIMULATOR).expect("a path");
        // SAFETY: the simulated driver; it stays open.
        let driver = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!driver.is_null(), "{SIMULATOR} is missing: build divvy-sim first");
        let slice = folder.join("slice");
        let gpu = GpuSpec {
            uuid: uuid_of_first(driver),
            limit: LIMIT,
            overhead: CONTEXT,
            weight: 1000,
            ..GpuSpec::default()
        };
        let spec = SliceSpec {
            id: "fuzz".into(),
            generation: 1,
            gpus: vec![gpu],
            ..SliceSpec::default()
        };
        drop(Control::create(&slice, &spec).expect("a slice"));
        set("DIVVY_SLICE", &slice);
        macro_rules! table {
            ($($name:ident),*) => {
                HashMap::from([$((stringify!($name), divvy_shim::table::$name as *const c_void as usize)),*])
            };
        }
        Bench {
            driver: driver as usize,
            hooks: hooks::for_each_call!(table),
            slice: Slice::open(&slice).expect("a sound slice"),
        }
    })
}

fn uuid_of_first(driver: *mut c_void) -> [u8; 16] {
    let mut uuid = [0u8; 16];
    // SAFETY: the driver's functions, with their signatures and a place for the answer.
    unsafe {
        let init: extern "C" fn(u32) -> c_int =
            std::mem::transmute(libc::dlsym(driver, c"cuInit".as_ptr()));
        let ask: extern "C" fn(*mut u8, c_int) -> c_int =
            std::mem::transmute(libc::dlsym(driver, c"cuDeviceGetUuid_v2".as_ptr()));
        assert_eq!((init(0), ask(uuid.as_mut_ptr(), 0)), (0, 0));
    }
    uuid
}

/// A hook, linked with coverage, or the simulated driver's own function.
fn find(name: &str) -> Option<*const c_void> {
    let bench = bench();
    if let Some(hook) = bench.hooks.get(name) {
        return Some(*hook as *const c_void);
    }
    let name = CString::new(name).ok()?;
    // SAFETY: a NUL-terminated name, and a library that stays open.
    let found = unsafe { libc::dlsym(bench.driver as *mut c_void, name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| hooks::start(&find));
    hooks::run(&find, data);
    let snapshot = bench().slice.read().expect("a sound slice");
    let usage = snapshot.usage(0);
    assert!(usage.peak <= LIMIT, "more was charged than there is");
    assert_eq!(
        snapshot.alarms(),
        0,
        "the limiter reported an internal error"
    );
});
