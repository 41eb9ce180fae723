//! Taking over what the driver says: what is ours, what is a stranger's, what is gone.

use divvy_core::{JobId, Mode};

use super::{Cycle, Living};
use crate::gpu::look::{Book, Look};
use crate::store::StoreError;

impl Cycle {
    /// Takes over a look: tends the slices, weighs their accounts, sees what GPUs there are.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn observed(&mut self, look: &Look) -> Result<(), StoreError> {
        self.blind = None;
        for (id, living) in &mut self.jobs {
            if let Some(book) = look.books.get(id) {
                tend(*id, living, look, book);
            }
        }
        self.reconcile(look)?;
        self.take_what_is_given_up()?;
        self.lost_and_found(look)?;
        for seen in &look.gpus {
            self.assign(&seen.observed.uuid)?;
        }
        Ok(())
    }

    /// The GPUs cannot be observed.
    pub(super) fn blinded(&mut self, why: String) -> Result<(), StoreError> {
        if self.blind.as_ref() != Some(&why) {
            tracing::error!(%why, "the GPUs cannot be observed");
            self.tell(None, "gpu_error", &why)?;
            self.blind = Some(why);
        }
        Ok(())
    }

    /// A GPU that does not answer is given out no more; jobs on it keep what they hold.
    fn lost_and_found(&mut self, look: &Look) -> Result<(), StoreError> {
        let mut news = Vec::new();
        for device in &mut self.devices {
            let answers = look
                .gpus
                .iter()
                .any(|seen| seen.observed.uuid == device.gpu.uuid);
            let mode = if answers {
                device.assigned
            } else {
                Mode::Unmanaged
            };
            if device.lost == answers {
                device.lost = !answers;
                device.gpu.mode = mode;
                let (index, uuid) = (device.gpu.index, &device.gpu.uuid);
                news.push(match answers {
                    true => ("gpu_back", format!("GPU {index} ({uuid}) answers again")),
                    false => (
                        "gpu_lost",
                        format!("GPU {index} ({uuid}) does not answer and is given out no more"),
                    ),
                });
            }
        }
        for (kind, text) in news {
            tracing::warn!("{text}");
            self.tell(None, kind, &text)?;
            self.round.replan = true;
        }
        Ok(())
    }
}

/// Shows the slice's processes that the agent lives, and gives back what the dead among them held.
fn tend(id: JobId, living: &mut Living, look: &Look, book: &Book) {
    let Some(held) = &living.slice else { return };
    held.beat();
    let tended = match &book.pages {
        Ok(pages) if pages.has_dead => held
            .reap(&|owner| look.lists(owner))
            .map_err(|error| error.to_string()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.clone()),
    };
    if let Err(error) = tended
        && !std::mem::replace(&mut living.damaged, true)
    {
        tracing::error!(job = %id, error, "its slice cannot be read");
    }
}
