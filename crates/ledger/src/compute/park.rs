//! The gate of a parked job in its processes: a call that needs the GPU asks for the job's memory, and waits for it.
//!
//! The first call enters its name in the slice, where a daemon that was restarted finds it too. A daemon that is gone holds no call: after [`super::SCHEDULER_TIMEOUT_NS`] the call goes on to the driver, whose own lock
//! holds it for as long as the memory is away.

use std::ffi::CStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::gate::ASK_AGAIN;
use crate::futex;
use crate::layout::{SlotsFile, WAKE_CALL_WORDS, gate_word};
use crate::process::boot_time_ns;
use crate::slot::ProcessSlot;

/// Whether a call has asked for the memory of a parked job (`SlotsFile::wake_wanted`).
pub(super) mod wish {
    pub const NONE: u64 = 0;
    /// The first call enters its name.
    pub const NAMING: u64 = 1;
    pub const NAMED: u64 = 2;
}

/// For a wait inside a handler, which does not know the name of its function.
pub const UNNAMED_CALL: &CStr = c"";

/// Longest name of a call that is kept, in bytes.
const NAME_BYTES: usize = WAKE_CALL_WORDS * size_of::<u64>();

impl ProcessSlot {
    /// Whether the job's memory is not on its GPUs, or is on its way from or to them.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.control.grant.load(Acquire) == gate_word::PARKED
    }

    /// Asks for the memory of a parked job on behalf of this call, and waits until it is back. Returns early where the
    /// daemon is gone; false then.
    pub fn wait_for_wake(&self, call: &CStr) -> bool {
        let mut is_again = false;
        loop {
            let told = self.control.told.load(SeqCst);
            if !self.is_parked() {
                return true;
            }
            self.request_wake(call, is_again);
            if self.is_scheduler_gone(boot_time_ns()) {
                return false;
            }
            futex::wait(&self.control.told, told, ASK_AGAIN);
            is_again = true;
        }
    }

    /// The first call enters its name. A call that finds a name half entered for long takes over from a process that has
    /// died there.
    fn request_wake(&self, call: &CStr, is_again: bool) {
        let wanted = &self.slots.wake_wanted;
        match wanted.compare_exchange(wish::NONE, wish::NAMING, SeqCst, SeqCst) {
            Ok(_) => {
                self.slots.name_call(call.to_bytes());
                wanted.store(wish::NAMED, SeqCst);
            }
            Err(wish::NAMING) if is_again => wanted.store(wish::NAMED, SeqCst),
            Err(_) => {}
        }
        self.request_turn();
    }
}

impl SlotsFile {
    fn name_call(&self, name: &[u8]) {
        let mut bytes = [0; NAME_BYTES];
        let length = name.len().min(NAME_BYTES);
        bytes[..length].copy_from_slice(&name[..length]);
        let (words, _) = bytes.as_chunks();
        for (word, bytes) in self.wake_call.iter().zip(words) {
            word.store(u64::from_ne_bytes(*bytes), Relaxed);
        }
    }
}

/// The name in the bytes of a slice. A process writes it: what is no name of a function counts as a call without one.
pub(super) fn name_of(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let is_name = !name.is_empty()
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    if is_name {
        String::from_utf8_lossy(name).into_owned()
    } else {
        "a call of the driver".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use tempfile::TempDir;

    use super::*;
    use crate::{Control, DemandReader, GpuSpec, Grant, Slice, SliceSpec};

    fn slice(folder: &TempDir) -> (Control, ProcessSlot, DemandReader) {
        let spec = SliceSpec {
            id: "1".into(),
            gpus: vec![GpuSpec::default()],
            ..SliceSpec::default()
        };
        let control = Control::create(folder.path(), &spec).unwrap();
        let slice = Slice::open(folder.path()).unwrap();
        let reader = DemandReader::new(&slice).unwrap();
        (control, slice.join().unwrap(), reader)
    }

    #[test]
    fn a_call_of_a_parked_job_names_itself_and_waits_until_the_gate_changes() {
        let folder = TempDir::new().unwrap();
        let (control, slot, mut reader) = slice(&folder);
        control.grant(Grant::Parked, boot_time_ns());
        assert_eq!(reader.wake_call().unwrap(), None);
        thread::scope(|scope| {
            let waits = scope.spawn(|| slot.wait_for_wake(c"cuMemcpyDtoH_v2"));
            let end = Instant::now() + Duration::from_secs(10);
            let asked = loop {
                // What a living daemon does.
                control.refresh_grant(boot_time_ns());
                let call = reader.wake_call().unwrap();
                if call.is_some() || Instant::now() > end {
                    break call;
                }
            };
            assert_eq!(asked.as_deref(), Some("cuMemcpyDtoH_v2"));
            assert!(!waits.is_finished());
            control.grant(Grant::Open, boot_time_ns());
            assert!(waits.join().unwrap());
        });
        let slice = Slice::open(folder.path()).unwrap();
        slice.clear_wake_request().unwrap();
        assert_eq!(reader.wake_call().unwrap(), None);
    }

    #[test]
    fn a_daemon_that_is_gone_holds_no_call_and_finds_its_wish_later() {
        let folder = TempDir::new().unwrap();
        let (control, slot, mut reader) = slice(&folder);
        let long_ago = boot_time_ns().saturating_sub(2 * super::super::SCHEDULER_TIMEOUT_NS);
        control.grant(Grant::Parked, long_ago);
        assert!(!slot.wait_for_wake(c"cuCtxSynchronize"));
        assert!(!slot.wait_for_wake(c"cuStreamQuery"));
        let call = reader.wake_call().unwrap();
        assert_eq!(call.as_deref(), Some("cuCtxSynchronize"));
    }

    #[test]
    fn bytes_that_are_no_name_are_a_call_without_one() {
        for bytes in [&b""[..], b"\0\0", b"a b\0", b"\x1b[31m", b"\xff\xfe"] {
            assert_eq!(name_of(bytes), "a call of the driver");
        }
        let longest = [b'x'; NAME_BYTES];
        assert_eq!(name_of(&longest).len(), NAME_BYTES);
    }
}
