//! A slice in a temporary folder, and processes to race in it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::SeqCst;

use divvy_ledger::{Control, GpuSpec, Slice, SliceSpec};
use tempfile::TempDir;

pub struct Place {
    pub dir: TempDir,
    pub control: Control,
}

pub fn uuid(gpu: u8) -> [u8; 16] {
    [gpu + 1; 16]
}

impl Place {
    pub fn with_limit(limit: u64) -> Self {
        Self::new(&[limit])
    }

    /// One GPU for each limit; a context costs 256 MiB.
    pub fn new(limits: &[u64]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let gpu = |(index, limit): (usize, &u64)| GpuSpec {
            uuid: uuid(index as u8),
            limit: *limit,
            overhead: 256 << 20,
            weight: 250,
            ..GpuSpec::default()
        };
        let gpus = limits.iter().enumerate().map(gpu).collect();
        let spec = SliceSpec {
            id: "job-1".into(),
            generation: 7,
            gpus,
            ..SliceSpec::default()
        };
        let control = Control::create(dir.path(), &spec).expect("a slice is set up");
        Self { dir, control }
    }

    pub fn slice(&self) -> Slice {
        Slice::open(self.dir.path()).expect("the slice is sound")
    }
}

/// A forked process that ends with its closure. Killed and waited for when dropped.
pub struct Child(libc::pid_t);

impl Child {
    /// Forks as the C library does, handlers included.
    pub fn fork(body: impl FnOnce()) -> Self {
        speak_past_the_harness();
        // SAFETY: glibc keeps its allocator usable in the child of a program with threads; the child touches nothing
        // else that another thread may have been using, and leaves through _exit.
        Self::after(unsafe { libc::fork() }, body)
    }

    /// Forks behind the C library's back. Only for a process with one thread: a `fork` child.
    pub fn raw_fork(body: impl FnOnce()) -> Self {
        // SAFETY: with one thread, nothing can be half done in the child.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        Self::after(pid as libc::pid_t, body)
    }

    fn after(pid: libc::pid_t, body: impl FnOnce()) -> Self {
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            let fine = catch_unwind(AssertUnwindSafe(body)).is_ok();
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!fine)) };
        }
        Self(pid)
    }

    /// Takes over the child of a child, so that it ends with the test whatever happens. Call `adopt_orphans` first.
    pub fn orphan(pid: u64) -> Self {
        Self(pid as libc::pid_t)
    }

    pub fn pid(&self) -> u32 {
        self.0 as u32
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        if self.0 > 0 {
            // SAFETY: our own child, not waited for yet, so the pid is still its own.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
            self.0 = 0;
        }
    }

    /// Stops it and waits until it has stopped.
    pub fn stop(&self) {
        // SAFETY: our own child, not waited for yet, so the pid is still its own.
        let waited = unsafe {
            libc::kill(self.0, libc::SIGSTOP);
            libc::waitpid(self.0, std::ptr::null_mut(), libc::WUNTRACED)
        };
        assert_eq!(waited, self.0, "a child was to stop");
    }

    /// Has it go on, and waits until it does.
    pub fn go_on(&self) {
        // SAFETY: as above.
        let waited = unsafe {
            libc::kill(self.0, libc::SIGCONT);
            libc::waitpid(self.0, std::ptr::null_mut(), libc::WCONTINUED)
        };
        assert_eq!(waited, self.0, "a child was to go on");
    }

    /// Waits for its end; panics unless its closure returned.
    pub fn finish(mut self) {
        let mut status = 0;
        // SAFETY: our own child, waited for once.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!((waited, status), (self.0, 0), "a child failed");
        self.0 = 0;
    }
}

/// The test harness captures what a child of its thread prints, and then loses it. Set before the first fork: in a child, the
/// lock of the hooks may be held by a thread that is not there.
fn speak_past_the_harness() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let (parent, usual) = (std::process::id(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |what| {
            if std::process::id() == parent {
                return usual(what);
            }
            let line = format!("child: {what}\n");
            // SAFETY: a valid buffer.
            unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
        }));
    });
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes this process the parent of its children's children when those end.
pub fn adopt_orphans() {
    // SAFETY: concerns this process alone.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
}

/// Memory shared with children forked later.
pub struct Arena<T>(*mut T);

// SAFETY: shared on purpose; `T` must be made for that, and atomics and barriers are.
unsafe impl<T: Sync> Sync for Arena<T> {}

impl<T> Arena<T> {
    pub fn new(value: T) -> Self {
        // SAFETY: a fresh mapping, large enough and page aligned, written before anybody reads it.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            at.cast::<T>().write(value);
            Self(at.cast())
        }
    }
}

impl<T> Deref for Arena<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped and written in `new`, never unmapped.
        unsafe { &*self.0 }
    }
}

/// A barrier for processes.
pub struct Barrier(Arena<std::cell::UnsafeCell<libc::pthread_barrier_t>>);

// SAFETY: made for being waited on by many.
unsafe impl Sync for Barrier {}

impl Barrier {
    pub fn new(processes: u32) -> Self {
        // SAFETY: initialised below before use; plain bytes for the C library.
        let arena = Arena::new(std::cell::UnsafeCell::new(unsafe { std::mem::zeroed() }));
        // SAFETY: valid places; the barrier stays where it is for ever.
        unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_barrierattr_init(&mut attributes);
            libc::pthread_barrierattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_barrier_init(arena.get(), &attributes, processes);
        }
        Self(arena)
    }

    pub fn wait(&self) {
        // SAFETY: initialised in `new`.
        unsafe { libc::pthread_barrier_wait(self.0.get()) };
    }
}

/// Counts what `N` processes were granted, after the grant and before the release: never more than the ledger has granted.
/// One word for the sum, because words of several processes cannot be added up in one instant; and one for each
/// process, for when it dies.
pub struct Referee<const N: usize>(Arena<(AtomicI64, [AtomicI64; N])>);

impl<const N: usize> Referee<N> {
    pub fn new() -> Self {
        Self(Arena::new((
            AtomicI64::new(0),
            [const { AtomicI64::new(0) }; N],
        )))
    }

    /// What all hold, now that these bytes were granted to one.
    pub fn granted(&self, process: usize, bytes: u64) -> u64 {
        let (sum, own) = &*self.0;
        own[process].fetch_add(bytes as i64, SeqCst);
        // Negative: less than what died between the two words.
        u64::try_from(sum.fetch_add(bytes as i64, SeqCst) + bytes as i64).unwrap_or(0)
    }

    /// Called before these bytes are released.
    pub fn returned(&self, process: usize, bytes: u64) {
        let (sum, own) = &*self.0;
        sum.fetch_sub(bytes as i64, SeqCst);
        own[process].fetch_sub(bytes as i64, SeqCst);
    }

    /// A dead process holds nothing. It may have died between its own word and the sum; then the sum is too low.
    pub fn died(&self, process: usize) {
        let (sum, own) = &*self.0;
        sum.fetch_sub(own[process].swap(0, SeqCst), SeqCst);
    }

    /// What all hold, while none of them runs.
    pub fn settled(&self) -> u64 {
        let (sum, own) = &*self.0;
        let all = own.iter().map(|word| word.load(SeqCst)).sum();
        sum.store(all, SeqCst);
        all.try_into()
            .expect("nobody returned what was not granted")
    }
}
