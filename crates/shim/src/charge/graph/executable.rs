//! Executable graphs that allocate memory, and the driver cache that all graphs of the process share on a GPU.
//!
//! The driver maps a graph's memory when it is launched or uploaded and keeps it mapped for the next launch, until it is
//! launched into another stream, memory is given back, or another graph leaves an allocation where it was (CUDA programming
//! guide, "Physical Memory Management and Sharing" and "Performance Considerations"). Only then can a launch make the driver
//! take more, and only then it is charged beforehand; a *steady* launch is not.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::time::Duration;

use divvy_driver::sys::cuda::{CUdevice, CUgraphExec};
use divvy_ledger::{AllocationKind, DRIVER_RELEASE_TIMEOUT_NS, boot_time_ns};

use crate::account::GpuAccount;
use crate::charge::breakdown::Breakdown;
use crate::charge::driver_cache::{self, CacheSource, DriverCache, Growth};
use crate::charge::retry::retry_while;
use crate::oom_report;

/// Between two looks whether a stream's work has come to its end. Work of a graph takes milliseconds: a shorter pause
/// would only ask the driver more often.
const PATIENCE: Duration = Duration::from_millis(1);
/// How often other threads' steady launches are let come to their end. Launches are short, so most end during these; a
/// thread that was interrupted takes longer, and gets the pauses.
const YIELDS: usize = 1000;

/// How many executable graphs take memory: all that a launch looks at in a program whose graphs take none. A fork child begins
/// with its parent's figure, which only costs it a look.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether no graph of this process takes memory.
#[inline]
pub fn none_takes_memory() -> bool {
    COUNT.load(Relaxed) == 0
}

/// The executable graphs of this process that take memory of the slice's GPUs.
#[derive(Default)]
pub struct Graphs {
    known: RwLock<HashMap<usize, Arc<Executable>>>,
    /// Whether there is a cache: all that a view looks at in a program whose graphs take no memory.
    any: AtomicBool,
    /// By the GPU's place in the slice.
    caches: Mutex<HashMap<usize, Arc<DriverCache>>>,
    /// How often a graph was launched that leaves allocations behind, and how many such launches are under way.
    leavings: AtomicU64,
    leaving: AtomicUsize,
    /// Held shared by steady launches, for memory that is given back meanwhile would have to be taken again uncharged.
    steady: RwLock<()>,
}

/// One executable graph.
pub struct Executable {
    needs: Vec<Need>,
    leaves_allocations: bool,
    mapped: Mutex<Option<Mapped>>,
}

/// The most that a run may take from one cache, in bytes.
pub struct Need {
    pub cache: Arc<DriverCache>,
    pub bytes: u64,
}

/// Where a graph's memory was last mapped: into which stream, and in which [`Graphs::era`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mapped {
    stream: usize,
    era: u64,
}

impl Graphs {
    /// The executable graph of that handle, if it takes memory.
    pub fn get(&self, handle: CUgraphExec) -> Option<Arc<Executable>> {
        if none_takes_memory() {
            return None;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(&(handle as usize)).cloned()
    }

    /// Remembers a new executable graph; one of that handle from before is gone.
    pub fn insert(&self, handle: CUgraphExec, executable: Arc<Executable>) {
        self.change(|known| known.insert(handle as usize, executable));
    }

    /// Takes one out.
    pub fn take(&self, handle: CUgraphExec) -> Option<Arc<Executable>> {
        if none_takes_memory() {
            return None;
        }
        self.change(|known| known.remove(&(handle as usize)))
    }

    fn change<T>(&self, change: impl FnOnce(&mut HashMap<usize, Arc<Executable>>) -> T) -> T {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut known);
        COUNT.store(known.len(), Relaxed);
        result
    }

    /// The cache of all graphs on a device.
    pub fn cache(&self, place: &GpuAccount, device: CUdevice) -> Arc<DriverCache> {
        let new = || Arc::new(DriverCache::new(CacheSource::Graphs(device), *place));
        self.any.store(true, Release);
        self.caches().entry(place.gpu).or_insert_with(new).clone()
    }

    /// Brings a GPU's charge up to date.
    pub fn reconcile(&self, gpu: usize) {
        if !self.any.load(Acquire) {
            return;
        }
        if let Some(cache) = self.on(gpu) {
            cache.reconcile();
        }
    }

    /// Has the driver give back what no graph uses. Not while a steady launch is under way: it needs what it has.
    pub fn trim_caches(&self, gpu: usize) {
        if let Some(cache) = self.on(gpu)
            && cache.charged() > 0
        {
            match self.between_launches() {
                Some(_alone) => cache.trim(),
                None => cache.reconcile(),
            }
        }
    }

    /// Waits until no steady launch is under way; not for one that the driver keeps, for it may wait for what this thread has yet to do.
    fn between_launches(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        for _ in 0..YIELDS {
            match self.steady.try_write() {
                Ok(alone) => return Some(alone),
                Err(TryLockError::Poisoned(alone)) => return Some(alone.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Runs a call that gives memory back, between steady launches where that can be had: what a launch that the driver keeps has taken is
    /// in use, and stays.
    pub fn giving_back<T>(&self, call: impl FnOnce() -> T) -> T {
        let alone = self.between_launches();
        let result = call();
        let caches: Vec<_> = self.caches().values().cloned().collect();
        for cache in &caches {
            cache.gave_back();
            // Memory that such a launch is about to take again stays charged; the launch corrects it when it returns.
            if alone.is_some() {
                cache.reconcile();
            }
        }
        result
    }

    /// Waits until no trim is in progress, with a bound: the trimming thread may itself wait for this thread.
    fn between_trims(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let leave = || match self.steady.try_read() {
            Ok(launching) => Ok(launching),
            Err(TryLockError::Poisoned(launching)) => Ok(launching.into_inner()),
            Err(TryLockError::WouldBlock) => Err(()),
        };
        leave()
            .or_else(|()| {
                let start = boot_time_ns();
                let waits = || boot_time_ns().saturating_sub(start) < DRIVER_RELEASE_TIMEOUT_NS;
                retry_while(PATIENCE, waits, leave)
            })
            .ok()
    }

    /// Leave to launch without charging, if the graph's memory is where its last run in that stream left it, and no other launch is under
    /// way that may put something else there.
    pub fn steady(
        &self,
        executable: &Executable,
        stream: Option<usize>,
    ) -> Option<RwLockReadGuard<'_, ()>> {
        let launching = self.between_trims()?;
        let now = Mapped {
            stream: stream?,
            era: self.era(executable),
        };
        let own = usize::from(executable.leaves_allocations);
        let is_steady = *executable.mapped() == Some(now) && self.leaving.load(SeqCst) <= own;
        is_steady.then_some(launching)
    }

    /// A launch begins. One that leaves allocations behind is not to meet steady ones: those under way come to their end first, and none begins
    /// until the guard is dropped.
    pub fn launching(&self, executable: &Executable) -> Option<Leaving<'_>> {
        executable.leaves_allocations.then(|| {
            self.leaving.fetch_add(1, SeqCst);
            drop(self.between_launches());
            Leaving(self)
        })
    }

    /// Counts everything that may have parted the graph from its memory; each makes it higher.
    pub fn era(&self, executable: &Executable) -> u64 {
        let shrinks = executable.needs.iter().map(|need| need.cache.shrinks());
        shrinks.sum::<u64>() + self.leavings.load(SeqCst)
    }

    /// The graph's memory was mapped for a run in that stream, `era` being read before.
    pub fn mapped(&self, executable: &Executable, stream: Option<usize>, era: u64) {
        *executable.mapped() = stream.map(|stream| Mapped { stream, era });
    }

    /// The graph was launched. What it leaves behind may be where other graphs had their memory, but not where it has its own.
    pub fn launched(&self, executable: &Executable) {
        if executable.leaves_allocations {
            self.leavings.fetch_add(1, SeqCst);
            let mut mapped = executable.mapped();
            if let Some(mapped) = &mut *mapped {
                mapped.era += 1;
            }
        }
    }

    fn on(&self, gpu: usize) -> Option<Arc<DriverCache>> {
        self.caches().get(&gpu).cloned()
    }

    /// Says what graphs are charged on a GPU.
    pub fn add_to_breakdown(&self, gpu: usize, tally: &mut Breakdown) {
        if let Some(cache) = self.on(gpu) {
            tally.add(AllocationKind::Graph, cache.charged());
        }
    }

    fn caches(&self) -> MutexGuard<'_, HashMap<usize, Arc<DriverCache>>> {
        self.caches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A launch under way that leaves allocations behind.
pub struct Leaving<'a>(&'a Graphs);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.leaving.fetch_sub(1, SeqCst);
    }
}

impl Executable {
    pub fn new(needs: Vec<Need>, leaves_allocations: bool) -> Arc<Self> {
        Arc::new(Executable {
            needs,
            leaves_allocations,
            mapped: Mutex::default(),
        })
    }

    /// Charges the most that a run may make the driver take. When that does not fit, it may be that the run before has what
    /// this one will get: then it waits for the stream, two seconds at most.
    pub fn begin(&self, graphs: &Graphs, is_busy: impl Fn() -> bool) -> Option<Vec<Growth>> {
        if let Some(growths) = self.begin_now() {
            return Some(growths);
        }
        if !self.needs.iter().all(Need::is_within_limit) {
            return None;
        }
        let start = boot_time_ns();
        let waits = || {
            boot_time_ns().saturating_sub(start) < DRIVER_RELEASE_TIMEOUT_NS
                && self.needs.iter().all(Need::could_fit)
                && is_busy()
        };
        let again = || {
            for need in &self.needs {
                graphs.trim_caches(need.cache.place().gpu);
            }
            let fits = self.needs.iter().all(Need::fits);
            fits.then(|| self.begin_now()).flatten().ok_or(())
        };
        retry_while(PATIENCE, waits, again).ok()
    }

    fn begin_now(&self) -> Option<Vec<Growth>> {
        let mut growths = Vec::with_capacity(self.needs.len());
        for need in &self.needs {
            oom_report::record_request(need.cache.place(), driver_cache::most(need.bytes));
            let Some(growth) = need.cache.begin(need.bytes) else {
                self.finish(growths);
                return None;
            };
            growths.push(growth);
        }
        Some(growths)
    }

    /// Ends what `begin` began. A driver that took more than it should have is an alarm.
    pub fn finish(&self, growths: Vec<Growth>) {
        for (need, growth) in self.needs.iter().zip(growths) {
            if need.cache.finish(growth) {
                need.cache.place().slot.alarm();
            }
        }
    }

    /// Agrees with the driver.
    pub fn reconcile(&self) {
        for need in &self.needs {
            need.cache.changed();
        }
    }

    fn mapped(&self) -> MutexGuard<'_, Option<Mapped>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Need {
    fn is_within_limit(&self) -> bool {
        let GpuAccount { slot, gpu, .. } = *self.cache.place();
        driver_cache::most(self.bytes) <= slot.limit(gpu)
    }

    /// Whether it would fit if nothing but other graphs' memory were given back. What is charged is looked at first: what is given back then is
    /// counted twice and not missed.
    fn could_fit(&self) -> bool {
        let charged = self.cache.charged();
        self.free().saturating_add(charged) >= driver_cache::most(self.bytes)
    }

    fn fits(&self) -> bool {
        self.free() >= driver_cache::most(self.bytes)
    }

    fn free(&self) -> u64 {
        let GpuAccount { slot, gpu, .. } = *self.cache.place();
        slot.free(gpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_launch_is_steady_while_another_leaves_allocations_behind_or_after_it_has() {
        let graphs = Graphs::default();
        let [steady, leaves] = [false, true].map(|leaves| Executable::new(vec![], leaves));
        let is_steady = |graph: &Executable| graphs.steady(graph, Some(7)).is_some();
        for graph in [&steady, &leaves] {
            assert!(!is_steady(graph), "not launched yet");
            graphs.mapped(graph, Some(7), graphs.era(graph));
            assert!(is_steady(graph));
        }
        assert!(graphs.launching(&steady).is_none());
        let leaving = graphs.launching(&leaves);
        assert!(!is_steady(&steady));
        assert!(
            is_steady(&leaves),
            "it does not part itself from its memory"
        );
        graphs.launched(&leaves);
        drop(leaving);
        assert!(!is_steady(&steady) && is_steady(&leaves));
        graphs.mapped(&steady, Some(7), graphs.era(&steady));
        assert!(is_steady(&steady));
    }

    #[test]
    fn memory_that_is_given_back_for_ever_holds_no_launch_up_for_good() {
        let graphs = Graphs::default();
        let steady = Executable::new(vec![], false);
        graphs.mapped(&steady, Some(7), graphs.era(&steady));
        let trim = graphs.between_launches();
        assert!(trim.is_some() && graphs.steady(&steady, Some(7)).is_none());
        drop(trim);
        assert!(graphs.steady(&steady, Some(7)).is_some());
    }

    #[test]
    fn a_steady_launch_that_the_driver_keeps_holds_no_launch_up_for_good() {
        let graphs = Graphs::default();
        let [steady, leaves] = [false, true].map(|leaves| Executable::new(vec![], leaves));
        graphs.mapped(&steady, Some(7), 0);
        let kept = graphs.steady(&steady, Some(7));
        assert!(kept.is_some() && graphs.between_launches().is_none());
        assert!(graphs.launching(&leaves).is_some());
        assert_eq!(graphs.giving_back(|| 7), 7);
    }
}
