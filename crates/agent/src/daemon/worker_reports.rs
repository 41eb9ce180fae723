//! The ways of the workers' reports into the controller's mailbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::checkpoint;
use crate::compute::WakeReporter;
use crate::controller::mailbox::{Mailbox, Message};
use crate::gpu::SourceError;
use crate::gpu::mig::MigReport;
use crate::gpu::probe::ProbeSender;
use crate::gpu::sample::NodeSample;
use crate::host::error::error_chain;
use crate::journal::retention::PruneSender;

/// Samples of the GPUs, or why there is none. `renew` gets why this process can serve the GPUs no longer: the daemon has
/// started without GPUs (`is_blind`) and now there is one, or a new process alone can ask the driver.
pub fn samples(
    mailbox: &Mailbox,
    is_blind: bool,
    renew: watch::Sender<Option<String>>,
) -> impl Fn(Result<NodeSample, SourceError>) + Send + 'static {
    let mailbox = mailbox.clone();
    let has_failed = AtomicBool::new(false);
    move |sample| {
        let message = match sample {
            // What a start learns of GPUs is not known of these.
            Ok(sample) if is_blind && !sample.gpus.is_empty() => {
                return drop(renew.send_replace(Some("a GPU responds".to_owned())));
            }
            Err(SourceError::Returned) => {
                return drop(renew.send_replace(Some(error_chain(&SourceError::Returned))));
            }
            Ok(sample) => {
                has_failed.store(false, Ordering::Relaxed);
                Message::Sampled(Box::new(sample))
            }
            Err(error) => {
                let why = error_chain(&error);
                // Twice, as a single failure may be another program's doing.
                let is_final = error.needs_new_process();
                if has_failed.swap(is_final, Ordering::Relaxed) && is_final {
                    renew.send_replace(Some(why.clone()));
                }
                Message::ObservationFailed(why)
            }
        };
        mailbox.post(message);
    }
}

/// Outcomes of MIG commands.
pub fn mig_reports(mailbox: &Mailbox) -> impl Fn(MigReport) + Clone + Send + 'static {
    let mailbox = mailbox.clone();
    move |report| mailbox.post(Message::MigReport(Box::new(report)))
}

/// Progress of checkpoints.
pub fn checkpoint_reports(mailbox: &Mailbox) -> checkpoint::ReportSender {
    let mailbox = mailbox.clone();
    Arc::new(move |report| mailbox.post(Message::CheckpointReport(Box::new(report))))
}

/// Calls of parked jobs that need their memory.
pub fn wake_reports(mailbox: &Mailbox) -> WakeReporter {
    let mailbox = mailbox.clone();
    Box::new(move |job, call| mailbox.post(Message::WakeWanted { job, call }))
}

/// Outcomes of probes of GPUs.
pub fn probe_reports(mailbox: &Mailbox) -> ProbeSender {
    let mailbox = mailbox.clone();
    Arc::new(move |probed| mailbox.post(Message::GpuProbed(probed)))
}

/// What the pruner wants forgotten.
pub fn prune_requests(mailbox: &Mailbox) -> PruneSender {
    let mailbox = mailbox.clone();
    Box::new(move |past, done| mailbox.post(Message::Prune { past, done }))
}
