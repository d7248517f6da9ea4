//! Where the members of a team wait for each other: spinning at first, then asleep.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Rounds of spinning before a waiting member sleeps: a few hundred microseconds. Members that have a core each arrive
/// within a fraction of that. Where they have not, spinning on (or yielding, which is for a whole time slice) keeps the
/// core from the very member that is waited for.
const SPINS: u32 = 4000;

/// A place where members wait for each other.
pub(super) struct Barrier {
    size: usize,
    arrived: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
    /// Members that sleep or are about to.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

impl Barrier {
    pub(super) fn new(size: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self {
            size,
            arrived: zero(),
            round: zero(),
            broken: AtomicBool::new(false),
            sleepers: zero(),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    /// Waits until all are here.
    ///
    /// # Panics
    /// If another member did.
    pub(super) fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.size {
            self.arrived.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                self.wake();
            }
            return;
        }
        let waiting = || self.round.load(Ordering::SeqCst) == round && !self.broken.load(Ordering::SeqCst);
        let mut spins = 0;
        while self.round.load(Ordering::Acquire) == round && spins < SPINS {
            spins += 1;
            std::hint::spin_loop();
        }
        if waiting() {
            // Counted before the last look, so either that look sees the new round or the last to arrive sees a sleeper.
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            let bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.bell.wait_while(bed, |()| waiting()).unwrap_or_else(PoisonError::into_inner));
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        assert!(!self.broken.load(Ordering::SeqCst), "another member of the team panicked");
    }

    /// Ends the waiting of all: one of them panics.
    pub(super) fn breach(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        // Whoever looked before this either holds the lock or sleeps by now.
        drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_all();
    }
}
