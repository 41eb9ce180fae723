//! Memory of several processes: whose NVML says it is, and when it comes back.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use divvy_driver::sys::cuda::*;
use serde_json::{Value, json};

use crate::gpu::{Failure, Gpu, Used, cu, grew};
use crate::{Answer, say};

const MIB: usize = 1 << 20;
/// As large as a context (300 to 500 MB), so that both are seen to come back, and small enough for every GPU.
const SIZE: usize = 512 * MIB;
/// How long a look for memory that comes back may go on. A killed process's memory returned within 72 ms
/// (docs/hardware.md); a hundred times that is a failure and no delay.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks. A delay of tens of milliseconds is measured to a hundredth; longer would be coarse, and shorter
/// would keep the driver busy.
const LOOK: Duration = Duration::from_micros(500);

/// A child that says what it has, and ends with its stdin.
struct Other {
    child: Child,
    said: Value,
}

impl Other {
    fn start(words: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or("a pipe")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let said = serde_json::from_str(&line)
            .map_err(|_| format!("`gpu_facts {}` printed {line:?}", words.join(" ")))?;
        Ok(Self { child, said })
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// Closes its stdin and waits for its end.
    fn end(mut self) -> Result<(), Failure> {
        drop(self.child.stdin.take());
        self.child.wait()?;
        Ok(())
    }
}

/// Waits until whoever started this process closes our stdin.
fn stay() -> Result<(), Failure> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(())
}

/// Holds that many bytes until told to end.
pub fn hold(bytes: &str) -> Result<(), Failure> {
    let gpu = Gpu::with_context()?;
    let bytes: usize = bytes.parse()?;
    gpu.alloc(bytes)?;
    say(&json!({ "held": bytes }))?;
    stay()
}

/// Opens memory by an IPC handle, given in hexadecimal digits.
pub fn open(handle: &str) -> Result<(), Failure> {
    let gpu = Gpu::with_context()?;
    let before = gpu.used()?;
    let mut ipc = CUipcMemHandle::default();
    for (byte, at) in ipc.reserved.iter_mut().zip((0..handle.len()).step_by(2)) {
        let digits = handle.get(at..at + 2).ok_or("an odd handle")?;
        *byte = std::ffi::c_char::from_ne_bytes([u8::from_str_radix(digits, 16)?]);
    }
    let mut address = 0;
    let flags = 1; // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    cu!(gpu, cuIpcOpenMemHandle_v2(&raw mut address, ipc, flags))?;
    say(&json!({"grew": grew(before, gpu.used()?)}))?;
    stay()
}

/// Imports memory by a descriptor that was inherited, and maps nothing.
pub fn import(descriptor: &str) -> Result<(), Failure> {
    let gpu = Gpu::with_context()?;
    let before = gpu.used()?;
    let descriptor: usize = descriptor.parse()?;
    let mut handle = 0;
    cu!(
        gpu,
        cuMemImportFromShareableHandle(
            &raw mut handle,
            std::ptr::without_provenance_mut(descriptor),
            CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR
        )
    )?;
    say(&json!({"grew": grew(before, gpu.used()?)}))?;
    stay()
}

pub fn ipc() -> Answer {
    let gpu = Gpu::with_context()?;
    let address = gpu.alloc(SIZE)?;
    let mut handle = CUipcMemHandle::default();
    cu!(gpu, cuIpcGetMemHandle(&raw mut handle, address))?;
    let digits: String = handle
        .reserved
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    watched(&gpu, &["open", &digits], || gpu.release(address))
}

pub fn vmm() -> Answer {
    let gpu = Gpu::with_context()?;
    let kind = CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR;
    let properties = CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        requestedHandleTypes: kind,
        location: CUmemLocation {
            type_: CUmemLocationType::DEVICE,
            id: gpu.device,
        },
        ..Default::default()
    };
    let mut handle = 0;
    cu!(
        gpu,
        cuMemCreate(&raw mut handle, SIZE, &raw const properties, 0)
    )?;
    let mut descriptor = -1i32;
    cu!(
        gpu,
        cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, kind, 0)
    )?;
    // SAFETY: a descriptor of ours; the child is to inherit it.
    unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
    let digits = descriptor.to_string();
    watched(&gpu, &["import", &digits], || {
        // SAFETY: a descriptor of ours, closed once.
        unsafe { libc::close(descriptor) };
        cu!(gpu, cuMemRelease(handle))
    })
}

/// Looks at exporter and importer while both hold the memory, when the exporter has let go, and when both have.
fn watched(gpu: &Gpu, importer: &[&str], let_go: impl FnOnce() -> Result<(), Failure>) -> Answer {
    let exported = gpu.used()?;
    let other = Other::start(importer)?;
    let row = |used: Used, other: Used| {
        json!({
            "device": used.device,
            "exporter": used.process,
            "importer": other.process,
        })
    };
    let both = row(gpu.used()?, gpu.used_by(other.id())?);
    let_go()?;
    let importer_alone = row(gpu.used()?, gpu.used_by(other.id())?);
    let said = other.said.clone();
    other.end()?;
    let nobody = gpu.used()?;
    Ok(json!({
        "size": SIZE,
        "exporter_alone": {"device": exported.device, "exporter": exported.process},
        "importer_grew_by": said["grew"],
        "both": both,
        "importer_alone": importer_alone,
        "nobody": {"device": nobody.device, "exporter": nobody.process},
    }))
}

/// Kills a process that holds a quarter of what is free, 16 GiB at most, five times.
pub fn kill_return() -> Answer {
    let gpu = Gpu::with_context()?;
    let bytes = (gpu.free()? / 4).min(16 << 30).to_string();
    let mut rounds = Vec::new();
    for _ in 0..5 {
        let before = gpu.used()?;
        let mut other = Other::start(&["hold", &bytes])?;
        let held = gpu.used()?;
        let pid = other.id();
        let start = Instant::now();
        other.child.kill()?;
        other.child.wait()?;
        let waited = start.elapsed();
        let mut listed = None;
        let returned = loop {
            let now = gpu.used_by(pid)?;
            if listed.is_none() && now.process.is_none() {
                listed = Some(start.elapsed());
            }
            if now.device <= before.device {
                break Some(start.elapsed());
            }
            if start.elapsed() > PATIENCE {
                break None;
            }
            std::thread::sleep(LOOK);
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        rounds.push(json!({
            "held": grew(before, held),
            "waited_for_ms": ms(waited),
            "unlisted_ms": listed.map(ms),
            "returned_ms": returned.map(ms),
        }));
    }
    Ok(json!({ "rounds": rounds }))
}
