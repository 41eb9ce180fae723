//! The safe layers over a driver whose GPUs misbehave: `fake_driver.c`, built by the C compiler when the test runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use divvy_driver::cuda::{ContextOverhead, Source, context_overhead};
use divvy_driver::load::{Library, LoadError};
use divvy_driver::nvml::health::{RemappedRows, XidEvent, XidEvents};
use divvy_driver::nvml::{Identity, Memory, Nvml, Process, Utilization};
use divvy_driver::{Error, Uuid};

const CONTEXT: u64 = 432 << 20;

static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver.c");
    let flags = ["-std=gnu11", "-Wextra", "-Werror"];
    divvy_testkit::compiled(&source, "libfake_driver.so", &flags)
});

fn nvml() -> Nvml {
    Nvml::load(Some(&LIBRARY)).expect("the fake driver")
}

fn uuid(gpu: u8) -> Uuid {
    format!("GPU-0000000{gpu}-0000-0000-0000-000000000000")
        .parse()
        .expect("a UUID")
}

#[test]
fn a_gpu_shows_its_identity_and_its_slices() {
    let nvml = nvml();
    let device = nvml.device_by_uuid(uuid(0)).expect("GPU 0");
    let identity = Identity {
        uuid: uuid(0).to_string(),
        index: 0,
        name: "NVIDIA Fake 0".to_owned(),
        pci_bus_id: "00000000:00:00.0".to_owned(),
    };
    let memory = Memory {
        total: 85_899_345_920,
        reserved: 629_145_600,
        used: 270_200_320,
        free: 85_000_000_000,
    };
    assert_eq!(nvml.driver_version().expect("a version"), "570.86.15");
    assert_eq!(device.identity(), Ok(identity));
    assert_eq!(device.memory(), Ok(memory));
    assert_eq!(
        device.utilization(),
        Ok(Some(Utilization {
            gpu: 42,
            memory: 17
        }))
    );
}

#[test]
fn a_lost_gpu_is_an_error_in_its_own_place_only() {
    let nvml = nvml();
    let devices = nvml.devices().expect("four places");
    assert_eq!(devices.len(), 4);
    for index in [0, 3] {
        let device = devices[index].as_ref().expect("a handle");
        assert_eq!(device.identity().expect("it is well").index as usize, index);
    }
    let no_handle = devices[2].as_ref().err().expect("no handle");
    assert!(no_handle.is_lost());
    assert_eq!(
        no_handle.to_string(),
        "GPU 2: nvmlDeviceGetHandleByIndex_v2: GPU is lost"
    );
    let lost = devices[1]
        .as_ref()
        .expect("a handle")
        .memory()
        .expect_err("it is lost");
    assert!(lost.is_lost());
    assert_eq!(
        lost.to_string(),
        "GPU 1: nvmlDeviceGetMemoryInfo_v2: GPU is lost"
    );
}

#[test]
fn what_a_gpu_does_not_offer_is_done_without() {
    let nvml = nvml();
    let device = nvml.device_by_uuid(uuid(3)).expect("GPU 3");
    let memory = device.memory().expect("version 1");
    assert_eq!((memory.total, memory.reserved), (1 << 36, 0));
    assert_eq!(device.utilization(), Ok(None));
    assert_eq!(device.process_utilization(0), Ok(None));
    assert_eq!(device.processes(), Ok(vec![]));
}

#[test]
fn a_gpu_tells_its_memory_errors_where_it_counts_them() {
    let nvml = nvml();
    let well = nvml.device(0).expect("GPU 0");
    assert_eq!(well.uncorrected_ecc_errors(), Ok(Some(7)));
    let rows = RemappedRows {
        uncorrectable: 2,
        is_pending: true,
        has_failed: false,
    };
    assert_eq!(well.remapped_rows(), Ok(Some(rows)));
    let without = nvml.device(3).expect("GPU 3");
    assert_eq!(without.uncorrected_ecc_errors(), Ok(None));
    assert_eq!(without.remapped_rows(), Ok(None));
    let lost = nvml.device(1).expect("GPU 1");
    assert!(
        lost.uncorrected_ecc_errors()
            .is_err_and(|error| error.is_lost())
    );
    assert!(lost.remapped_rows().is_err_and(|error| error.is_lost()));
}

#[test]
fn xid_events_name_the_gpu_and_a_dropped_set_is_freed() {
    let nvml = Arc::new(nvml());
    for _ in 0..2 {
        let mut events = XidEvents::new(&nvml).expect("the only set");
        let refused = XidEvents::new(&nvml).err().expect("a second one");
        assert!(refused.is_unsupported());
        // The driver's answers on an empty set are unknown: it is not asked.
        assert_eq!(events.poll(), Ok(None));
        let mut watch = |index: u8| {
            let device = nvml.device(index.into()).expect("a handle");
            events.watch(&device, uuid(index))
        };
        assert_eq!(watch(3), Ok(()), "it reports no Xid");
        assert!(watch(1).is_err_and(|error| error.is_lost()));
        assert_eq!(watch(0), Ok(()));
        assert!(events.watches(uuid(0)) && events.watches(uuid(3)));
        assert!(!events.watches(uuid(1)));
        let event = XidEvent {
            gpu: uuid(0),
            xid: 999,
        };
        assert_eq!(events.poll(), Ok(Some(event)));
        assert_eq!(events.poll(), Ok(None));
    }
}

#[test]
fn a_long_process_list_comes_whole_and_each_process_once() {
    let nvml = nvml();
    let mut processes = nvml
        .device_by_uuid(uuid(0))
        .expect("GPU 0")
        .processes()
        .expect("a list");
    processes.retain(|process| process.pid != std::process::id());
    assert_eq!(processes.len(), 201);
    assert_eq!(processes[0], Process { pid: 9, used: None });
    let last = Process {
        pid: 3_000_000_199,
        used: Some(1 << 20),
    };
    assert_eq!(processes.last(), Some(&last));
}

#[test]
fn a_context_costs_what_nvml_says_of_this_process() {
    let measured = context_overhead(Some(&LIBRARY), Some(&LIBRARY), uuid(0));
    assert_eq!(
        measured,
        Ok(ContextOverhead {
            bytes: CONTEXT,
            source: Source::Process
        })
    );
}

#[test]
fn where_this_process_is_not_listed_a_context_costs_what_the_gpu_lost() {
    let measured = context_overhead(Some(&LIBRARY), Some(&LIBRARY), uuid(3));
    assert_eq!(
        measured,
        Ok(ContextOverhead {
            bytes: CONTEXT,
            source: Source::Device
        })
    );
}

#[test]
fn a_missing_gpu_is_named_in_the_error() {
    let missing = context_overhead(Some(&LIBRARY), Some(&LIBRARY), uuid(9));
    assert_eq!(missing, Err(Error::NoSuchDevice(uuid(9))));
}

#[test]
fn a_library_that_is_not_there_is_named_once() {
    let path = PathBuf::from("/nowhere/libcuda.so.1");
    let Err(error) = Library::open(Some(&path), "unused") else {
        panic!("it is nowhere")
    };
    assert_eq!(
        error.to_string(),
        "cannot load /nowhere/libcuda.so.1: cannot open shared object file: No such file or directory"
    );
    assert!(matches!(
        Nvml::load(Some(&path)),
        Err(Error::Load(LoadError::Open { .. }))
    ));
}

#[test]
fn a_function_that_the_library_lacks_is_named() {
    // The C library stands in for a driver too old to have any of them.
    let Err(error) = Nvml::load(Some(&PathBuf::from("libc.so.6"))) else {
        panic!("libc is no NVML")
    };
    assert_eq!(
        error.to_string(),
        "this driver is too old: its library has no function nvmlInit_v2"
    );
    assert!(error.is_unsupported());
}
