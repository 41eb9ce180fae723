//! What requests take of a cluster's nodes, and what they give back.

use divvy_core::Bytes;

use super::{Choice, Cluster, GpuFree, Shape};

impl Cluster {
    /// Takes what the request asks for there. Returns false, and changes nothing, where it does not fit.
    pub fn take(&mut self, shape: &Shape, choice: &Choice) -> bool {
        let Some(node) = self.nodes.get_mut(choice.node) else {
            return false;
        };
        let part = match shape.gpus {
            0 => GpuFree::NOTHING,
            _ => match node.part(shape) {
                Some(part) => part,
                None => return false,
            },
        };
        let enough = usize::try_from(shape.gpus).is_ok_and(|gpus| gpus == choice.gpus.len());
        let holds = |gpu: &usize| node.gpus.get(*gpu).is_some_and(|free| free.holds(part));
        let distinct =
            (choice.gpus.iter().enumerate()).all(|(at, gpu)| !choice.gpus[..at].contains(gpu));
        if !enough
            || !distinct
            || !choice.gpus.iter().all(holds)
            || shape.cpu_milli > node.cpu_milli
            || shape.memory > node.memory
        {
            return false;
        }
        node.cpu_milli -= shape.cpu_milli;
        node.memory = node.memory.saturating_sub(shape.memory);
        for gpu in &choice.gpus {
            node.gpus[*gpu] = node.gpus[*gpu].without(part);
        }
        self.change += 1;
        node.changed = self.change;
        true
    }

    /// Gives back what a request took there. It must have been taken before.
    pub fn release(&mut self, shape: &Shape, choice: &Choice) {
        let node = &mut self.nodes[choice.node];
        node.cpu_milli += shape.cpu_milli;
        node.memory = node.memory.saturating_add(shape.memory);
        if let Some(part) = node.part(shape) {
            for gpu in &choice.gpus {
                node.gpus[*gpu] = node.gpus[*gpu].with(part);
            }
        }
        debug_assert!(node.is_sound(), "more free than the node has");
        self.change += 1;
        node.changed = self.change;
    }

    /// Sets what is free of a node, for callers that read it elsewhere. GPUs that `gpus` lacks keep what they have.
    /// Nothing counts as changed where all is as before; a node that does not exist is left alone.
    pub fn set_free(&mut self, node: usize, cpu_milli: u64, memory: Bytes, gpus: &[GpuFree]) {
        let Some(node) = self.nodes.get_mut(node) else {
            return;
        };
        let same_gpus = node.gpus.iter().zip(gpus).all(|(had, now)| had == now);
        if same_gpus && node.cpu_milli == cpu_milli && node.memory == memory {
            return;
        }
        node.cpu_milli = cpu_milli;
        node.memory = memory;
        for (had, now) in node.gpus.iter_mut().zip(gpus) {
            *had = *now;
        }
        self.change += 1;
        node.changed = self.change;
    }
}
