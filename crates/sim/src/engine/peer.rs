//! Which GPUs reach each other's memory, and what a context may use of others'.

use super::context::Context;
use super::handles::Handle;
use super::process::{Done, Process};
use super::seat::instance_of;
use divvy_driver::sys::cuda::CUresult;

impl Process {
    /// GPUs of one data centre model in one machine reach each other (inferred; what links they have is not modelled).
    /// Instances of GPUs reach nobody (MIG user guide, "Application Considerations").
    pub fn reaches(&self, gpu: usize, other: usize) -> bool {
        if instance_of(gpu).or(instance_of(other)).is_some() {
            return false;
        }
        let (model, peer) = (self.model(gpu), self.model(other));
        gpu != other && model.name == peer.name && !model.display
    }

    /// Lets the current context use the memory of another one's GPU. All memory of a process is reachable in it anyway.
    pub fn enable_peer(&self, peer: Handle<Context>) -> Done {
        let mut objects = self.objects();
        let own = self.current(&objects)?;
        let other = objects.context(peer)?.gpu;
        if own.context == peer {
            return Err(CUresult::INVALID_CONTEXT);
        }
        if !self.reaches(own.gpu, other) {
            return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
        }
        let context = objects.contexts.get_mut(own.context);
        let context = context.ok_or(CUresult::INVALID_CONTEXT)?;
        if context.peers.contains(&peer) {
            return Err(CUresult::PEER_ACCESS_ALREADY_ENABLED);
        }
        context.peers.push(peer);
        Ok(())
    }

    pub fn disable_peer(&self, peer: Handle<Context>) -> Done {
        let mut objects = self.objects();
        let own = self.current(&objects)?;
        objects.context(peer)?;
        let context = objects.contexts.get_mut(own.context);
        let context = context.ok_or(CUresult::INVALID_CONTEXT)?;
        let at = context.peers.iter().position(|other| *other == peer);
        context
            .peers
            .remove(at.ok_or(CUresult::PEER_ACCESS_NOT_ENABLED)?);
        Ok(())
    }
}
