//! Peer access between GPUs.

use crate::engine::mig::partition::instance_of;
use crate::engine::process::Process;

impl Process {
    /// GPUs of one data centre model in one machine reach each other (inferred; what links they have is not modelled).
    /// Instances of GPUs reach no other memory (MIG user guide, "Application Considerations").
    pub fn reaches(&self, gpu: usize, other: usize) -> bool {
        if instance_of(gpu).or(instance_of(other)).is_some() {
            return false;
        }
        let (model, peer) = (self.model(gpu), self.model(other));
        gpu != other && model.name == peer.name && !model.display
    }
}
