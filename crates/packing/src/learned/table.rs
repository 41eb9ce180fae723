//! The value table: thousandths of a GPU that will stay unused, by model, spare axis, CPU and what is free.

use divvy_core::Bytes;

use super::cells::{CPU, FREE, SPARE, cpu_class, free_class, memory_milli, prior, spare_class};
use crate::node::{GpuFree, Node, NodeSpec, WHOLE};

/// Values by cell. The row after the last model serves models that the training did not see.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub(super) models: usize,
    /// Whether share and memory are two axes.
    pub(super) two_axes: bool,
    pub(super) values: Vec<f32>,
}

impl Table {
    pub(super) fn untrained(models: usize, two_axes: bool) -> Self {
        let spares = if two_axes { SPARE } else { 1 };
        let cells = (0..=models).flat_map(|_| {
            (0..spares).flat_map(|spare| {
                (0..CPU).flat_map(move |cpu| (0..FREE).map(move |free| prior(spare, cpu, free)))
            })
        });
        Self {
            models,
            two_axes,
            values: cells.collect(),
        }
    }

    /// The mean of tables of equal size; `self` where there is no other.
    pub(super) fn averaged(mut self, others: &[Self]) -> Self {
        let tables = (others.len() + 1) as f32;
        for (cell, value) in self.values.iter_mut().enumerate() {
            let others = others.iter().map(|table| table.values[cell]);
            *value = (*value + others.sum::<f32>()) / tables;
        }
        self
    }

    /// Cells of one model.
    pub(super) fn row(&self) -> usize {
        let spares = if self.two_axes { SPARE } else { 1 };
        spares * CPU * FREE
    }

    /// Writes the cells of a node's GPUs that have anything free, with the GPU's index.
    pub(super) fn cells(&self, kind: GpuKind, free: Free<'_>, mut cell: impl FnMut(usize, usize)) {
        let mut gpu_milli = 0;
        let mut idle = 0;
        for gpu in free.gpus {
            gpu_milli += gpu.milli();
            idle += usize::from(gpu.is_idle());
        }
        if gpu_milli == 0 {
            return;
        }
        let model = kind.model.min(self.models) * self.row();
        let cpu = cpu_class(free.cpu_milli, gpu_milli);
        for (at, gpu) in free.gpus.iter().enumerate() {
            let share = gpu.milli();
            if share == 0 {
                continue;
            }
            let memory = memory_milli(*gpu, kind.per_byte);
            let spare = if self.two_axes {
                spare_class(share, memory)
            } else {
                0
            };
            let class = free_class(share, share.min(memory), idle);
            cell(model + (spare * CPU + cpu) * FREE + class, at);
        }
    }

    /// What will stay unused of a node's GPUs, in thousandths of a GPU.
    pub(super) fn unused(&self, kind: GpuKind, free: Free<'_>) -> f32 {
        let mut sum = 0.0;
        self.cells(kind, free, |cell, _| sum += self.values[cell]);
        sum
    }
}

/// What the table has to know of a node's GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct GpuKind {
    pub(super) model: usize,
    /// Thousandths of the GPU's memory in a byte; `None` where the memory is unknown.
    pub(super) per_byte: Option<f32>,
}

impl GpuKind {
    pub(super) fn of(spec: &NodeSpec) -> Self {
        let per_byte = |memory: Bytes| WHOLE as f32 / memory.get() as f32;
        Self {
            model: spec.model,
            per_byte: spec.gpu_memory.map(per_byte),
        }
    }
}

/// What is free of a node, now or after a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Free<'a> {
    pub(super) cpu_milli: u64,
    pub(super) memory: Bytes,
    pub(super) gpus: &'a [GpuFree],
}

impl<'a> Free<'a> {
    pub(super) fn of(node: &'a Node) -> Self {
        Self {
            cpu_milli: node.cpu_milli,
            memory: node.memory,
            gpus: &node.gpus,
        }
    }
}
