//! The ways of the workers' reports into the controller's mailbox.

use std::sync::Arc;

use crate::checkpoint;
use crate::controller::mailbox::{Mailbox, Message};
use crate::gpu::SourceError;
use crate::gpu::mig::MigReport;
use crate::gpu::sample::NodeSample;
use crate::host::error::error_chain;
use crate::journal::retention::PruneSender;

/// Samples of the GPUs, or why there is none.
pub fn samples(mailbox: &Mailbox) -> impl Fn(Result<NodeSample, SourceError>) + Send + 'static {
    let mailbox = mailbox.clone();
    move |sample| {
        mailbox.post(match sample {
            Ok(sample) => Message::Sampled(Box::new(sample)),
            Err(error) => Message::ObservationFailed(error_chain(&error)),
        });
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

/// What the pruner wants forgotten.
pub fn prune_requests(mailbox: &Mailbox) -> PruneSender {
    let mailbox = mailbox.clone();
    Box::new(move |past, done| mailbox.post(Message::Prune { past, done }))
}
