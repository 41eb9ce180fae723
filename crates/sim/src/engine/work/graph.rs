//! Executable graphs: made from graphs, changed, uploaded, launched.
//!
//! The nodes of a launch run one after the other in an order their edges allow, as all work of a process on a GPU does;
//! what follows each other in the queue is put together, so that a launch of a thousand kernels is one entry. A host
//! node runs in its turn, and what later nodes do to memory waits for it.

use crate::engine::objects::Objects;
use crate::engine::objects::context::{Context, Current};
use crate::engine::objects::graph::exec::{Exec, allocations};
use crate::engine::objects::graph::node::{Node, Operation};
use crate::engine::objects::graph::plan::{Mismatch, Plan, PlanStep};
use crate::engine::objects::graph::{Graph, Owner, memory};
use crate::engine::objects::handles::Handle;
use crate::engine::objects::host_call::HostCall;
use crate::engine::objects::result::Done;
use crate::engine::objects::stream::{Destination, Event, Stream, Target};
use crate::engine::process::Process;
use crate::engine::time::Work;
use crate::engine::work::launch::break_context;
use divvy_driver::sys::cuda::{
    CUgraphExecUpdateResult as Verdict, CUgraphInstantiate_flags as Flags, CUresult,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a graph cannot be instantiated.
pub enum InstantiateError {
    /// One of the nodes of a cycle.
    Cycle(Handle<Node>),
    Other(CUresult),
}

impl From<CUresult> for InstantiateError {
    fn from(error: CUresult) -> Self {
        InstantiateError::Other(error)
    }
}

/// A stretch of a launch: what is done to memory, and the time it takes. The first has no host function.
#[derive(Default)]
struct Segment {
    host: Option<HostCall>,
    effects: Vec<Arc<Operation>>,
    queued: Vec<Queued>,
}

enum Queued {
    Work(Work),
    Record(Handle<Event>),
}

impl Segment {
    /// What follows at once is one piece of work.
    fn push(&mut self, work: Work) {
        let last = self.queued.last_mut();
        match (last, work) {
            (Some(Queued::Work(Work::Busy(have))), Work::Busy(more))
            | (Some(Queued::Work(Work::Delay(have))), Work::Delay(more)) => {
                *have = have.saturating_add(more);
            }
            (_, work) => self.queued.push(Queued::Work(work)),
        }
    }
}

impl Process {
    pub fn instantiate(
        &self,
        graph: Handle<Graph>,
        flags: u64,
    ) -> Result<Handle<Exec>, InstantiateError> {
        let known = Flags::AUTO_FREE_ON_LAUNCH.0
            | Flags::UPLOAD.0
            | Flags::DEVICE_LAUNCH.0
            | Flags::USE_NODE_PRIORITY.0;
        let has = |flag: Flags| flags & u64::from(flag.0) != 0;
        if flags & !u64::from(known) != 0
            || has(Flags::AUTO_FREE_ON_LAUNCH) && has(Flags::DEVICE_LAUNCH)
        {
            return Err(CUresult::INVALID_VALUE.into());
        }
        if has(Flags::DEVICE_LAUNCH) {
            return Err(CUresult::NOT_SUPPORTED.into());
        }
        let mut objects = self.objects();
        let found = objects.graphs.get(graph)?;
        if found.filling || found.owner != Owner::Program {
            return Err(CUresult::INVALID_VALUE.into());
        }
        let others = objects.graphs.execs.find(|exec| exec.source == graph);
        if !others.is_empty() && objects.graphs.touches_allocations(graph)? {
            return Err(CUresult::INVALID_VALUE.into());
        }
        let plan = Plan::of(&objects.graphs, graph)?.map_err(InstantiateError::Cycle)?;
        let addresses = allocations(&plan);
        for base in addresses {
            objects.graphs.memory.hold(base);
        }
        let users = objects.graphs.get(graph)?.users.clone();
        users.retain_all(&mut objects.graphs.users);
        let peak = memory::peak(&plan);
        Ok(objects.graphs.execs.insert(Exec {
            flags,
            source: graph,
            plan,
            peak,
            bound: BTreeMap::new(),
            last: None,
            stream: None,
            users,
        }))
    }

    /// Memory that it has allocated and that is not freed lives on.
    pub fn destroy_exec(&self, handle: Handle<Exec>) -> Done {
        let mut objects = self.objects();
        let exec = objects.graphs.execs.remove(handle);
        let exec = exec.ok_or(CUresult::INVALID_VALUE)?;
        for base in allocations(&exec.plan) {
            objects.let_go(base);
        }
        self.unmap_graphs(&mut objects);
        exec.users.release_all(&mut objects.graphs.users);
        Ok(())
    }

    /// Takes the memory a launch will need.
    pub fn upload_graph(&self, exec: Handle<Exec>, stream: usize) -> Done {
        let (target, _) = self.uncaptured(stream)?;
        self.bind_graph(&mut self.objects(), exec, target)
    }

    pub fn launch_graph(&'static self, exec: Handle<Exec>, stream: usize) -> Done {
        let (target, current) = match self.destination(stream)? {
            Destination::Issue(target, current) => (target, current),
            Destination::Capture(stream) => return self.capture_launch(exec, stream),
        };
        self.after_host_functions(current.gpu);
        let segments = self.prepare(exec, target, current)?;
        for segment in segments {
            self.issue_segment(exec, segment, target, current)?;
        }
        let ticket = self.state().queue(self.slot, current.gpu).newest();
        if let Some(exec) = self.objects().graphs.execs.get_mut(exec) {
            exec.last = Some((current.gpu, ticket));
        }
        Ok(())
    }

    /// Checks everything, takes the memory, and lays out what is to be done. Nothing has changed when it fails.
    fn prepare(
        &self,
        handle: Handle<Exec>,
        target: Target,
        current: Current,
    ) -> Done<Vec<Segment>> {
        let mut objects = self.objects();
        let exec = objects.graphs.execs.get(handle);
        let exec = exec.ok_or(CUresult::INVALID_VALUE)?;
        let segments = self.segments(&objects, &exec.plan, current.gpu)?;
        let frees_itself = exec.flags & u64::from(Flags::AUTO_FREE_ON_LAUNCH.0) != 0;
        let unfreed = if frees_itself {
            objects.graphs.memory.unfreed_of(handle)
        } else {
            Vec::new()
        };
        let memory = &objects.graphs.memory;
        memory.check_launch(&exec.plan, &unfreed)?;
        self.bind_graph(&mut objects, handle, target)?;
        for base in unfreed {
            objects.end_graph_allocation(base);
        }
        Ok(segments)
    }

    fn segments(&self, objects: &Objects, plan: &Plan, gpu: usize) -> Done<Vec<Segment>> {
        let mut segments = vec![Segment::default()];
        let mut failed = Ok(());
        plan.visit(&mut |step| {
            let added = self.add_step(objects, &step.operation, gpu, &mut segments);
            if failed.is_ok() {
                failed = added;
            }
        });
        failed.map(|()| segments)
    }

    fn add_step(
        &self,
        objects: &Objects,
        operation: &Arc<Operation>,
        gpu: usize,
        segments: &mut Vec<Segment>,
    ) -> Done {
        if let Operation::Host(call) = &**operation {
            segments.push(Segment {
                host: Some(*call),
                ..Segment::default()
            });
            return Ok(());
        }
        let Some(segment) = segments.last_mut() else {
            return Ok(());
        };
        match &**operation {
            Operation::Kernel(launch) => {
                segment.push(self.check_launch(objects, gpu, &launch.shape)?);
                segment.effects.push(operation.clone());
            }
            Operation::Move(of) => {
                let work = of.resolve(objects)?.work(self, gpu);
                work.into_iter().for_each(|work| segment.push(work));
                segment.effects.push(operation.clone());
            }
            Operation::Allocate(_) | Operation::Free(_) => segment.effects.push(operation.clone()),
            Operation::Record(event) => segment.queued.push(Queued::Record(*event)),
            // What an event stands for has been issued before, and so is done before.
            Operation::Wait(_) | Operation::Empty | Operation::Child(_) | Operation::Host(_) => {}
        }
        Ok(())
    }

    fn issue_segment(
        &'static self,
        exec: Handle<Exec>,
        segment: Segment,
        target: Target,
        current: Current,
    ) -> Done {
        let effects = segment.effects;
        let touch = move || {
            for operation in &effects {
                self.take_effect(exec, operation, current.context);
            }
        };
        match segment.host {
            None => touch(),
            Some(call) => self.issue_host_function(current.gpu, target, move || {
                call.call();
                touch();
            })?,
        }
        for queued in segment.queued {
            match queued {
                Queued::Work(work) => {
                    self.issue(current.gpu, target, work);
                }
                // The event may have been destroyed since.
                Queued::Record(event) => {
                    let _ = self.issue_record(event, target, current.gpu);
                }
            }
        }
        Ok(())
    }

    /// What a node does to memory. The launch has long succeeded: an address that is no longer there breaks the
    /// context.
    fn take_effect(&self, exec: Handle<Exec>, operation: &Operation, context: Handle<Context>) {
        match operation {
            Operation::Kernel(launch) => self.run_kept(launch, context),
            Operation::Move(of) => {
                let mut objects = self.objects();
                let transfer = of.resolve(&objects);
                let checked = transfer.and_then(|transfer| {
                    transfer.check(self, &objects)?;
                    Ok(transfer)
                });
                match checked {
                    // SAFETY: just checked; host memory is the program's word, as with every copy.
                    Ok(transfer) => unsafe { transfer.carry_out() },
                    Err(_) => break_context(&mut objects, context),
                }
            }
            Operation::Allocate(allocate) => {
                self.begin_graph_allocation(&mut self.objects(), allocate, exec);
            }
            Operation::Free(address) => self.objects().end_graph_allocation(*address),
            _ => {}
        }
    }

    /// A launch into a captured stream becomes a child graph, unless it allocates.
    fn capture_launch(&self, exec: Handle<Exec>, stream: Handle<Stream>) -> Done {
        let mut objects = self.objects();
        let found = objects.graphs.execs.get_mut(exec);
        let found = found.ok_or(CUresult::INVALID_VALUE)?;
        let mut allocates = false;
        found
            .plan
            .visit(&mut |step| allocates |= step.operation.touches_allocations());
        if allocates {
            return Err(objects.refuse_capture(stream));
        }
        let plan = std::mem::take(&mut found.plan);
        let child = objects.graphs.copy(&plan, Owner::Program);
        if let Some(found) = objects.graphs.execs.get_mut(exec) {
            found.plan = plan;
        }
        let captured = objects.capture(stream, Operation::Child(child));
        captured.map(drop)
    }

    /// Makes an executable graph do what a graph of the same shape says.
    pub fn update_exec(&self, exec: Handle<Exec>, graph: Handle<Graph>) -> Result<(), Mismatch> {
        let generic = |verdict| Mismatch {
            verdict,
            node: None,
            from: None,
        };
        let mut objects = self.objects();
        let graphs = &mut objects.graphs;
        let child = graphs.get(graph).map(|graph| graph.owner);
        if child.is_ok_and(|owner| owner != Owner::Program) {
            return Err(generic(Verdict::ERROR));
        }
        let plan = match Plan::of(graphs, graph) {
            Ok(Ok(plan)) => plan,
            _ => return Err(generic(Verdict::ERROR)),
        };
        let found = graphs.execs.get_mut(exec);
        let exec = found.ok_or_else(|| generic(Verdict::ERROR))?;
        exec.plan.compare(&plan)?;
        exec.plan.adopt(plan);
        Ok(())
    }

    /// The same for the child graph of one node.
    pub fn update_exec_child(
        &self,
        exec: Handle<Exec>,
        node: Handle<Node>,
        graph: Handle<Graph>,
    ) -> Done {
        let mut objects = self.objects();
        let plan = Plan::of(&objects.graphs, graph)?.map_err(|_| CUresult::INVALID_VALUE)?;
        let step = step_of(&mut objects, exec, node)?;
        let child = step.child.as_mut().ok_or(CUresult::INVALID_VALUE)?;
        child.compare(&plan).map_err(|_| CUresult::INVALID_VALUE)?;
        child.adopt(plan);
        Ok(())
    }

    /// Switches a node of an executable graph on or off, if asked to; whether it is on.
    pub fn switch_exec_node(
        &self,
        exec: Handle<Exec>,
        node: Handle<Node>,
        on: Option<bool>,
    ) -> Done<bool> {
        let mut objects = self.objects();
        let step = step_of(&mut objects, exec, node)?;
        if !matches!(*step.operation, Operation::Kernel(_) | Operation::Move(_)) {
            return Err(CUresult::INVALID_VALUE);
        }
        step.is_enabled = on.unwrap_or(step.is_enabled);
        Ok(step.is_enabled)
    }

    /// Changes the parameters of one node of an executable graph.
    pub fn change_exec(
        &self,
        objects: &mut Objects,
        exec: Handle<Exec>,
        node: Handle<Node>,
        operation: Operation,
    ) -> Done {
        step_of(objects, exec, node)?.change(operation)
    }
}

/// The step of an executable graph that is made of a node, which its graph must still have.
fn step_of(objects: &mut Objects, exec: Handle<Exec>, node: Handle<Node>) -> Done<&mut PlanStep> {
    objects.graphs.node(node)?;
    let exec = objects.graphs.execs.get_mut(exec);
    let plan = &mut exec.ok_or(CUresult::INVALID_VALUE)?.plan;
    plan.step_of(node).ok_or(CUresult::INVALID_VALUE)
}
