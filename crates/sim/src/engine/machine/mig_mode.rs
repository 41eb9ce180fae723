//! The MIG mode of a GPU, and what removes all instances at once: resets, reloads of the driver, reboots.

use crate::engine::machine::mig_change::MigError;
use crate::engine::machine::state::Locked;
use crate::engine::mig::MigInstanceId;
use crate::engine::mig::partition::partitions_of;
use std::sync::atomic::Ordering::SeqCst;

/// What became of a mode that was set: it is so, or waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Done,
    InUse,
    ResetRequired,
}

impl Locked<'_> {
    /// Whether anyone uses the GPU or a part of it.
    fn is_used(&self, gpu: usize) -> bool {
        self.is_used_whole(gpu) || partitions_of(gpu).any(|partition| self.is_occupied(partition))
    }

    /// Sets the mode. Turning it off needs a GPU without instances; both need one that is not in use. Where
    /// `needs_reset`, it waits for one.
    pub fn set_mig_mode(
        &self,
        gpu: usize,
        on: bool,
        needs_reset: bool,
    ) -> Result<Activation, MigError> {
        self.mig_table(gpu).ok_or(MigError::Off)?;
        let mig = self.mig(gpu);
        mig.pending.store(u32::from(on), SeqCst);
        if mig.is_on() == on {
            return Ok(Activation::Done);
        }
        if self.is_used(gpu) || !mig.is_empty() {
            return Ok(Activation::InUse);
        }
        if needs_reset {
            return Ok(Activation::ResetRequired);
        }
        mig.set_mode(on);
        self.changed(gpu);
        Ok(Activation::Done)
    }

    /// Binds the GPU's handles anew.
    pub fn bind_again(&self, gpu: usize) {
        self.mig(gpu).bindings.fetch_add(1, SeqCst);
    }

    /// Resets a GPU that is not in use: the pending mode becomes the current one, and all instances are gone.
    pub fn reset(&self, gpu: usize) -> Result<(), MigError> {
        if self.is_used(gpu) {
            return Err(MigError::InUse);
        }
        self.restart_gpu(gpu, self.mig(gpu).will_be_on());
        Ok(())
    }

    /// Loads the driver anew, or restarts the machine: all instances are gone, and the mode as well where it does not
    /// `keep` it. No process may have them among its devices any more; what else held on to GPUs is gone.
    pub fn restart(&self, keep: impl Fn(usize) -> bool) -> Result<(), MigError> {
        self.reap();
        let gpus = || 0..self.gpu_count();
        if gpus().any(|gpu| partitions_of(gpu).any(|partition| self.is_occupied(partition))) {
            return Err(MigError::InUse);
        }
        for gpu in gpus() {
            self.mig(gpu).held.store(0, SeqCst);
            self.restart_gpu(gpu, keep(gpu) && self.mig(gpu).will_be_on());
        }
        Ok(())
    }

    fn restart_gpu(&self, gpu: usize, on: bool) {
        let mig = self.mig(gpu);
        mig.clear();
        mig.set_mode(on);
        self.gpus()[gpu].health.restart();
        self.changed(gpu);
    }

    /// A holder that is no process of the machine opens or closes the GPU as a whole, or a compute instance.
    pub fn hold(
        &self,
        gpu: usize,
        place: Option<MigInstanceId>,
        held: bool,
    ) -> Result<(), MigError> {
        let mig = self.mig(gpu);
        let word = match place {
            None => &mig.held,
            Some(place) => {
                mig.compute_instance(place).ok_or(MigError::NotFound)?;
                &mig.compute_record(place).leaked
            }
        };
        word.store(u32::from(held), SeqCst);
        Ok(())
    }
}
