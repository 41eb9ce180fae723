//! Peer access: which contexts' memory a context may use.

use crate::engine::objects::context::Context;
use crate::engine::objects::handles::Handle;
use crate::engine::objects::result::Done;
use crate::engine::process::Process;
use divvy_driver::sys::cuda::CUresult;

impl Process {
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
