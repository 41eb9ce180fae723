//! Accounting statistics: what processes did on a GPU, of running processes and of those that ended while the
//! accounting mode was on.

use crate::engine::machine::slots::ProcessSlot;
use crate::engine::machine::state::{Locked, State};
use crate::engine::mig::partition::instance_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{SystemTime, UNIX_EPOCH};

/// Records of ended processes that are kept; the oldest makes room.
pub const RECORDS: usize = 256;

/// What one process did on one GPU, from its first context to now or to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountingStats {
    /// As the process itself has it, or as the asking one has it while it runs.
    pub pid: u32,
    pub is_running: bool,
    /// When it began, in microseconds of the wall clock.
    pub began_us: u64,
    /// How long it lasted, in simulated nanoseconds.
    pub lasted_ns: u64,
    pub busy_ns: u64,
    /// The most bytes it held alone.
    pub peak: u64,
}

impl AccountingStats {
    /// Of the time it lasted.
    pub fn busy_percent(&self) -> u32 {
        let lasted = self.lasted_ns.max(1);
        (u128::from(self.busy_ns) * 100 / u128::from(lasted)).min(100) as u32
    }
}

/// The account of an ended process in the state file; zeroed memory is none.
#[repr(C)]
struct Record {
    pid: AtomicU64,
    began_us: AtomicU64,
    lasted_ns: AtomicU64,
    busy_ns: AtomicU64,
    peak: AtomicU64,
}

/// The records of one GPU, oldest overwritten first.
#[repr(C)]
pub struct Records {
    /// How many there have been.
    written: AtomicU64,
    ring: [Record; RECORDS],
}

impl Records {
    fn push(&self, account: &AccountingStats) {
        let written = self.written.load(SeqCst);
        let record = &self.ring[(written % RECORDS as u64) as usize];
        record.began_us.store(account.began_us, SeqCst);
        record.lasted_ns.store(account.lasted_ns, SeqCst);
        record.busy_ns.store(account.busy_ns, SeqCst);
        record.peak.store(account.peak, SeqCst);
        record.pid.store(u64::from(account.pid), SeqCst);
        self.written.store(written + 1, SeqCst);
    }

    fn clear(&self) {
        self.written.store(0, SeqCst);
    }

    /// Newest first.
    fn all(&self) -> impl Iterator<Item = AccountingStats> {
        let written = self.written.load(SeqCst);
        let kept = written.min(RECORDS as u64);
        (written - kept..written).rev().map(|at| {
            let record = &self.ring[(at % RECORDS as u64) as usize];
            AccountingStats {
                pid: record.pid.load(SeqCst) as u32,
                is_running: false,
                began_us: record.began_us.load(SeqCst),
                lasted_ns: record.lasted_ns.load(SeqCst),
                busy_ns: record.busy_ns.load(SeqCst),
                peak: record.peak.load(SeqCst),
            }
        })
    }
}

/// Microseconds of the wall clock.
pub fn wall_clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

impl State {
    fn account(
        &self,
        index: usize,
        slot: &ProcessSlot,
        gpu: usize,
        pid: u32,
    ) -> Option<AccountingStats> {
        let (began_us, began_ns) = slot.began(gpu)?;
        Some(AccountingStats {
            pid,
            is_running: true,
            began_us,
            lasted_ns: self.now().saturating_sub(began_ns),
            busy_ns: self.queue(index, gpu).busy(),
            peak: slot.peak(gpu),
        })
    }
}

impl Locked<'_> {
    /// A process has no context on a GPU any more: what it did there is kept if that is asked for. Of GPU instances no
    /// accounts are kept.
    pub fn close_account(&self, index: usize, gpu: usize) {
        let slot = &self.slots()[index];
        let settings = &self.gpu(gpu).settings;
        if settings.accounting()
            && instance_of(gpu).is_none()
            && let Some(account) = self.account(index, slot, gpu, slot.own_pid())
        {
            self.gpus()[gpu].records.push(&account);
        }
        slot.end(gpu);
    }

    /// Running processes first, then ended ones from the newest on.
    pub fn accounts(&self, gpu: usize) -> Vec<AccountingStats> {
        let slots = self.slots().iter().enumerate();
        let running = slots
            .filter(|(_, slot)| slot.is_live() && slot.has_context(gpu))
            .filter_map(|(index, slot)| self.account(index, slot, gpu, slot.pid_here()?));
        running.chain(self.gpus()[gpu].records.all()).collect()
    }

    /// Forgets ended processes.
    pub fn clear_accounts(&self, gpu: usize) {
        self.gpus()[gpu].records.clear();
    }
}
