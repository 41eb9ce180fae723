//! The record of a bypass: the process, its memory past the limiter, the start, and the daemon's action.

use divvy_api::v1;
use divvy_core::reconcile::{BypassKind, BypassPolicy, Limiter, Suspect};
use divvy_core::{Bytes, GpuUuid};
use jiff::Timestamp;

use crate::host::process::Process;

/// One process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    pub gpu: GpuUuid,
    pub gpu_index: u32,
    pub process: Process,
    /// As the kernel has it.
    pub program: String,
    pub way: BypassKind,
    pub limiter: Limiter,
    /// Most that it held.
    pub used: Option<Bytes>,
    /// The bytes that its ledger showed then.
    pub charged: Bytes,
    pub first_seen: Timestamp,
    pub detected: Timestamp,
    pub over: Option<Timestamp>,
    pub action: BypassPolicy,
}

impl Bypass {
    /// Takes over how it goes on: the figures at their worst.
    pub fn update_peaks(&mut self, suspect: &Suspect) {
        if suspect.used > self.used {
            (self.used, self.charged) = (suspect.used, suspect.charged);
        }
        self.way = suspect.kind;
    }

    /// `pid 4711 (python3) holds 4.0 GiB of GPU 0 past its slice`.
    pub fn describe(&self) -> String {
        let held = self
            .used
            .map_or_else(|| "memory".to_owned(), |used| used.human());
        let Process { pid, .. } = self.process;
        let excess = match self.way {
            BypassKind::OtherGpu => ", which is not allocated to its job",
            BypassKind::Unlimited | BypassKind::Understated => {
                ", more than its slice's ledger records"
            }
            BypassKind::Overdrawn => " in a slice over its memory limit",
            BypassKind::Escaped => " outside the control group in which the driver limits its job",
        };
        format!(
            "pid {pid} ({}) holds {held} of GPU {}{excess}",
            self.program, self.gpu_index
        )
    }

    /// Why it can.
    pub fn cause(&self) -> String {
        match self.way {
            BypassKind::Unlimited => self.limiter.describe().to_owned(),
            // Without a limiter, as on a MIG instance, the numbers that a script sets are the machine's.
            BypassKind::OtherGpu => {
                "its job holds other GPUs; remove a line that sets CUDA_VISIBLE_DEVICES".to_owned()
            }
            BypassKind::Understated => format!("the ledger records {}", self.charged.human()),
            BypassKind::Overdrawn => "the driver reports more than the limit".to_owned(),
            BypassKind::Escaped => "it moved, or was moved, to another control group".to_owned(),
        }
    }

    pub fn is_killed(&self) -> bool {
        self.action == BypassPolicy::Kill
    }

    pub fn to_api(&self) -> v1::Bypass {
        v1::Bypass {
            gpu_uuid: self.gpu.to_string(),
            gpu_index: self.gpu_index,
            pid: self.process.pid,
            program: self.program.clone(),
            kind: self.way.into(),
            cause: self.cause(),
            memory_driver_bytes: self.used.map(Bytes::get),
            memory_charged_bytes: self.charged.get(),
            first_seen_at: self.first_seen,
            detected_at: self.detected,
            ended_at: self.over,
            action: match self.action {
                BypassPolicy::Warn => v1::BypassAction::Warned,
                BypassPolicy::Deny => v1::BypassAction::Denied,
                BypassPolicy::Kill => v1::BypassAction::Killed,
            },
        }
    }
}
