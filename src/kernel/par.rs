//! Threads: a [`Team`] runs one closure on all of its members, who meet at barriers inside it.
//!
//! A token is computed in one such region, not in one fork and join per matrix: waking threads costs
//! microseconds, a barrier that spins first costs a fraction of one.
//!
//! Members write disjoint parts of common buffers. [`Shared`] makes that safe: between two barriers a
//! buffer is either read by everyone or written in parts that one fixed rule deals out, each part to one
//! member. A breach is a panic at the claim, not a data race. The rule deals by position only, so which
//! thread computes an element never affects its value.
#![allow(
    unsafe_code,
    reason = "hands out disjoint parts of one buffer to several threads, after checking the claim"
)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The most threads a team can have.
pub const MAX_THREADS: usize = 256;

/// Rounds of spinning before a waiting member sleeps: a few hundred microseconds. Members that have a core each arrive
/// within a fraction of that. Where they have not, spinning on (or yielding, which is for a whole time slice) keeps the
/// core from the very member that is waited for.
const SPINS: u32 = 4000;

/// A team of threads.
pub struct Team {
    pool: rayon::ThreadPool,
    size: usize,
}

/// Why a team cannot be formed.
#[derive(Debug, thiserror::Error)]
pub enum TeamError {
    /// The number of threads is outside `1..=MAX_THREADS`.
    #[error("cannot use {asked} threads: from 1 to {MAX_THREADS} are possible")]
    Size {
        /// The number asked for.
        asked: usize,
    },
    /// The system refused to start a thread.
    #[error("cannot start {asked} threads: {source}")]
    Start {
        /// The number asked for.
        asked: usize,
        /// What the system said.
        source: rayon::ThreadPoolBuildError,
    },
}

impl Team {
    /// Starts `size` threads, which sleep between runs.
    pub fn new(size: usize) -> Result<Self, TeamError> {
        if !(1..=MAX_THREADS).contains(&size) {
            return Err(TeamError::Size { asked: size });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(size)
            .thread_name(|i| format!("twinband-{i}"))
            .build()
            .map_err(|source| TeamError::Start { asked: size, source })?;
        Ok(Self { pool, size })
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Runs `f` once on every member at the same time and waits for all. A panic in one member ends the
    /// others at their next barrier and is passed on.
    pub fn run(&self, f: impl Fn(&mut Member<'_>) + Sync) {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let barrier = Barrier::new(self.size);
        // 0 means "no owner yet" in Shared.
        let run = RUNS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        self.pool.broadcast(|ctx| {
            let mut member = Member { index: ctx.index(), size: self.size, run, epoch: 1, barrier: &barrier };
            let _alarm = Alarm(&barrier);
            f(&mut member);
        });
    }
}

/// One thread's place in a running team.
pub struct Member<'t> {
    index: usize,
    size: usize,
    run: u32,
    epoch: u32,
    barrier: &'t Barrier,
}

impl Member<'_> {
    /// This member's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Waits until every member is here. Takes `&mut self`, so no claim of a [`Shared`] outlives it.
    pub fn sync(&mut self) {
        if self.size > 1 {
            self.barrier.wait();
        }
        self.epoch += 1;
    }

    /// This member's part of `n` items dealt in whole units of `unit` (the last may be short), as evenly as
    /// units allow.
    pub fn part(&self, n: usize, unit: usize) -> Range<usize> {
        part(n, unit, self.index, self.size)
    }
}

fn part(n: usize, unit: usize, index: usize, size: usize) -> Range<usize> {
    let units = n.div_ceil(unit);
    let cut = |i: usize| (units * i / size * unit).min(n);
    cut(index)..cut(index + 1)
}

/// Tells the others when this member leaves by a panic.
struct Alarm<'a>(&'a Barrier);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::SeqCst);
            self.0.wake();
        }
    }
}

struct Barrier {
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
    fn new(size: usize) -> Self {
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

    fn wait(&self) {
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

    fn wake(&self) {
        // Whoever looked before this either holds the lock or sleeps by now.
        drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_all();
    }
}

/// A buffer of `rows x width` elements that the members of one team run share.
pub struct Shared<'a, T> {
    data: &'a [UnsafeCell<T>],
    width: usize,
    /// The run that uses this buffer (0: none yet).
    run: AtomicU32,
    /// What the buffer is claimed for: epoch in the high half, [`mode`](Mode) in the low.
    claim: AtomicU64,
    /// Members that hold a writing claim right now.
    writers: [AtomicU64; MAX_THREADS / 64],
}

// SAFETY: a `Shared` gives out references only through `read`, `rows`, `cols` and `cells`, whose claims
// (see `enter`) keep writers of one epoch disjoint and readers and writers in different epochs.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

/// How a buffer is used between two barriers.
#[derive(Clone, Copy)]
enum Mode {
    Read,
    Rows,
    Cols(usize),
    /// Rows and columns of a cell.
    Cells(usize, usize),
}

impl Mode {
    fn tag(self) -> u64 {
        match self {
            Self::Read => 0,
            Self::Rows => 1,
            Self::Cols(unit) => 2 | (unit as u64) << 2,
            Self::Cells(rows, unit) => 3 | (rows as u64) << 2 | (unit as u64) << 7,
        }
    }
}

impl<'a, T> Shared<'a, T> {
    /// Columns are dealt in units of fewer than this.
    pub const UNITS: usize = 1 << 30;

    /// Lends `data`, seen as rows of `width`, to one team run.
    ///
    /// # Panics
    /// If `data` is not a whole number of rows.
    pub fn new(data: &'a mut [T], width: usize) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "{} elements in rows of {width}", data.len());
        let cells = std::ptr::from_mut(data) as *const [UnsafeCell<T>];
        // SAFETY: UnsafeCell<T> has the layout of T, and the exclusive borrow lasts for 'a.
        let data = unsafe { &*cells };
        Self {
            data,
            width,
            run: AtomicU32::new(0),
            claim: AtomicU64::new(0),
            writers: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Elements in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.data.len() / self.width
    }

    /// Claims the buffer for `mode` until the next barrier.
    fn enter(&self, m: &Member<'_>, mode: Mode) {
        // One run only: members of two runs do not meet at the same barriers.
        if let Err(run) = self.run.compare_exchange(0, m.run, Ordering::AcqRel, Ordering::Acquire) {
            assert!(run == m.run, "a shared buffer belongs to one team run");
        }
        let tag = mode.tag();
        assert!(tag < 1 << 32, "unit too large");
        let want = u64::from(m.epoch) << 32 | tag;
        let mut claim = self.claim.load(Ordering::Acquire);
        while claim != want {
            // References from earlier epochs ended before the barrier, which takes `&mut Member`.
            assert!(claim >> 32 < u64::from(m.epoch), "a buffer is used in two ways between two barriers");
            match self.claim.compare_exchange_weak(claim, want, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => claim = now,
            }
        }
    }

    fn enter_writing<'m>(&'m self, m: &'m Member<'_>, mode: Mode) -> Writing<'m> {
        self.enter(m, mode);
        let (word, bit) = (&self.writers[m.index / 64], 1 << (m.index % 64));
        assert!(word.fetch_or(bit, Ordering::Relaxed) & bit == 0, "a member claims its part twice");
        Writing { word, bit }
    }

    /// The whole buffer, for reading.
    ///
    /// # Panics
    /// If somebody writes it between the same two barriers.
    pub fn read<'m>(&'m self, m: &'m Member<'_>) -> &'m [T] {
        self.enter(m, Mode::Read);
        // SAFETY: in this epoch every claim is a read; writers' references ended before the last barrier.
        unsafe { &*(std::ptr::from_ref(self.data) as *const [T]) }
    }

    /// This member's rows.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers.
    pub fn rows<'m>(&'m self, m: &'m Member<'_>) -> Rows<'m, T> {
        let guard = self.enter_writing(m, Mode::Rows);
        let range = m.part(self.height(), 1);
        let cells = &self.data[range.start * self.width..range.end * self.width];
        // SAFETY: `part` gives each member other rows, in this epoch nobody reads, and `guard` keeps this
        // member from claiming twice.
        let data = unsafe { std::slice::from_raw_parts_mut(cells.as_ptr() as *mut T, cells.len()) };
        Rows { data, first: range.start, width: self.width, _guard: guard }
    }

    /// This member's columns of every row, dealt in units of `unit` columns.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers.
    pub fn cols<'m>(&'m self, m: &'m Member<'_>, unit: usize) -> Cols<'m, T> {
        let guard = self.enter_writing(m, Mode::Cols(unit));
        Cols { data: self.data, width: self.width, range: m.part(self.width, unit), _guard: Some(guard) }
    }

    /// This member's cells, where each row is cut into cells of `unit` columns and cells are dealt in turn.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers, or a row is not a whole number of cells.
    pub fn cells<'m>(&'m self, m: &'m Member<'_>, unit: usize) -> Cells<'m, T> {
        assert!(self.width.is_multiple_of(unit), "rows of {} in cells of {unit}", self.width);
        let guard = self.enter_writing(m, Mode::Cells(1, unit));
        Cells { data: self.data, width: self.width, unit, next: m.index, step: m.size, _guard: guard }
    }

    /// The same with cells of up to `rows` rows (the last may have fewer).
    ///
    /// # Panics
    /// As [`cells`](Self::cells), or if `rows` is not one to 16.
    pub fn bands<'m>(&'m self, m: &'m Member<'_>, rows: usize, unit: usize) -> Bands<'m, T> {
        assert!(self.width.is_multiple_of(unit), "rows of {} in cells of {unit}", self.width);
        assert!((1..=16).contains(&rows), "cells of {rows} rows");
        let guard = self.enter_writing(m, Mode::Cells(rows, unit));
        Bands { data: self.data, width: self.width, rows, unit, next: m.index, step: m.size, _guard: guard }
    }
}

/// Keeps a member from claiming twice; ends with the claim.
struct Writing<'m> {
    word: &'m AtomicU64,
    bit: u64,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.word.fetch_and(!self.bit, Ordering::Relaxed);
    }
}

/// A member's rows of a [`Shared`].
pub struct Rows<'m, T> {
    data: &'m mut [T],
    first: usize,
    width: usize,
    _guard: Writing<'m>,
}

impl<T> Rows<'_, T> {
    /// The row numbers.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.data.len() / self.width
    }

    /// The rows, one after the other.
    pub fn data(&mut self) -> &mut [T] {
        self.data
    }

    /// Each row with its number.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut [T])> {
        let first = self.first;
        self.data.chunks_exact_mut(self.width).enumerate().map(move |(i, row)| (first + i, row))
    }
}

/// A range of columns of every row of a matrix, for writing.
pub struct Cols<'m, T> {
    data: &'m [UnsafeCell<T>],
    width: usize,
    range: Range<usize>,
    _guard: Option<Writing<'m>>,
}

impl<'m, T> Cols<'m, T> {
    /// All columns of a plain slice seen as rows of `width`: for code that is not in a team.
    ///
    /// # Panics
    /// If `data` is not a whole number of rows.
    pub fn whole(data: &'m mut [T], width: usize) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "{} elements in rows of {width}", data.len());
        let cells = std::ptr::from_mut(data) as *const [UnsafeCell<T>];
        // SAFETY: UnsafeCell<T> has the layout of T, and the exclusive borrow lasts for 'm.
        Self { data: unsafe { &*cells }, width, range: 0..width, _guard: None }
    }

    /// The columns.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.data.len() / self.width
    }

    /// These columns of row `r` (of these rows).
    #[inline]
    pub fn row(&mut self, r: usize) -> &mut [T] {
        let cells = &self.data[r * self.width..][self.range.clone()];
        // SAFETY: nobody else has these columns (`part` is disjoint, or the borrow is exclusive), and
        // `&mut self` keeps this member to one row at a time.
        unsafe { std::slice::from_raw_parts_mut(cells.as_ptr() as *mut T, cells.len()) }
    }
}

/// A member's cells of a [`Shared`], one after the other.
pub struct Cells<'m, T> {
    data: &'m [UnsafeCell<T>],
    width: usize,
    unit: usize,
    next: usize,
    step: usize,
    _guard: Writing<'m>,
}

impl<T> Cells<'_, T> {
    /// The next cell: its row, its number in the row, its elements. `None` after the last.
    pub fn advance(&mut self) -> Option<(usize, usize, &mut [T])> {
        let start = self.next * self.unit;
        if start >= self.data.len() {
            return None;
        }
        let cells = &self.data[start..start + self.unit];
        let per_row = self.width / self.unit;
        let (row, cell) = (self.next / per_row, self.next % per_row);
        self.next += self.step;
        // SAFETY: cell numbers are congruent to this member's index modulo the team's size, so no other
        // member has this one; `next` only grows and `&mut self` ends the last cell's reference.
        Some((row, cell, unsafe { std::slice::from_raw_parts_mut(cells.as_ptr() as *mut T, cells.len()) }))
    }
}

/// A member's cells of several rows of a [`Shared`], one after the other.
pub struct Bands<'m, T> {
    data: &'m [UnsafeCell<T>],
    width: usize,
    rows: usize,
    unit: usize,
    next: usize,
    step: usize,
    _guard: Writing<'m>,
}

impl<T> Bands<'_, T> {
    /// The next cell: its first row, its number among those beside it, its elements. `None` after the last.
    pub fn advance(&mut self) -> Option<(usize, usize, Cols<'_, T>)> {
        let across = self.width / self.unit;
        let (row, cell) = (self.next / across * self.rows, self.next % across);
        let height = self.data.len() / self.width;
        if row >= height {
            return None;
        }
        self.next += self.step;
        let data = &self.data[row * self.width..(row + self.rows).min(height) * self.width];
        let range = cell * self.unit..(cell + 1) * self.unit;
        // Cell numbers are congruent to this member's index modulo the team's size, so no other member has these columns of
        // these rows; `next` only grows, and `&mut self` ends the last cell's claim to its own.
        Some((row, cell, Cols { data, width: self.width, range, _guard: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn team(n: usize) -> Team {
        Team::new(n).expect("a small team")
    }

    #[test]
    fn parts_cover_everything_once() {
        for (n, unit, size) in [(10, 1, 3), (1, 8, 4), (0, 8, 2), (1003, 8, 2), (64, 64, 5), (7, 3, 2)] {
            let mut next = 0;
            for i in 0..size {
                let r = part(n, unit, i, size);
                assert_eq!(r.start, next);
                assert!(r.start.is_multiple_of(unit) || r.start == n);
                next = r.end;
            }
            assert_eq!(next, n);
        }
    }

    #[test]
    fn members_see_each_others_work_after_a_barrier() {
        for size in [1, 2, 3, 8] {
            let (mut a, mut b) = (vec![0u64; 37 * 5], vec![0u64; 37 * 5]);
            let (sa, sb) = (Shared::new(&mut a, 37), Shared::new(&mut b, 37));
            team(size).run(|m| {
                for round in 0..100 {
                    let mut cols = sa.cols(m, 4);
                    for r in 0..cols.height() {
                        let start = cols.range().start;
                        for (i, x) in cols.row(r).iter_mut().enumerate() {
                            *x = (round * 1000 + r * 37 + start + i) as u64;
                        }
                    }
                    drop(cols);
                    m.sync();
                    let all = sa.read(m);
                    for (r, row) in sb.rows(m).iter_mut() {
                        for (i, x) in row.iter_mut().enumerate() {
                            *x = all[all.len() - 1 - (r * 37 + i)];
                        }
                    }
                    m.sync();
                }
            });
            for (i, x) in b.iter().enumerate() {
                assert_eq!(*x, (99_000 + 37 * 5 - 1 - i) as u64);
            }
        }
    }

    #[test]
    fn cells_are_dealt_once_each() {
        let mut a = vec![0u32; 12 * 7];
        let shared = Shared::new(&mut a, 12);
        team(3).run(|m| {
            let mut cells = shared.cells(m, 4);
            while let Some((row, cell, data)) = cells.advance() {
                for (i, x) in data.iter_mut().enumerate() {
                    *x += (row * 12 + cell * 4 + i) as u32 + 1;
                }
            }
        });
        assert!(a.iter().enumerate().all(|(i, x)| *x == i as u32 + 1));
    }

    #[test]
    fn bands_are_dealt_once_each() {
        for (height, rows) in [(7, 4), (8, 4), (1, 8), (5, 1)] {
            let mut a = vec![0u32; 12 * height];
            let shared = Shared::new(&mut a, 12);
            team(3).run(|m| {
                let mut bands = shared.bands(m, rows, 4);
                while let Some((row, cell, mut cols)) = bands.advance() {
                    assert_eq!(cols.height(), rows.min(height - row));
                    for r in 0..cols.height() {
                        for (i, x) in cols.row(r).iter_mut().enumerate() {
                            *x += ((row + r) * 12 + cell * 4 + i) as u32 + 1;
                        }
                    }
                }
            });
            assert!(a.iter().enumerate().all(|(i, x)| *x == i as u32 + 1), "{height} rows");
        }
    }

    #[test]
    fn wrong_claims_are_refused() {
        let breach = |f: &(dyn Fn(&mut Member<'_>, &Shared<'_, u8>) + Sync)| {
            let mut data = vec![0u8; 64];
            let shared = Shared::new(&mut data, 8);
            catch_unwind(AssertUnwindSafe(|| team(2).run(|m| f(m, &shared)))).is_err()
        };
        assert!(breach(&|m, s| {
            let _w = s.rows(m);
            s.read(m);
        }));
        assert!(breach(&|m, s| {
            s.read(m);
            s.cols(m, 8);
        }));
        assert!(breach(&|m, s| {
            s.cols(m, 8);
            s.cols(m, 4);
        }));
        assert!(breach(&|m, s| {
            let _one = s.rows(m);
            let _two = s.rows(m);
        }));
        assert!(!breach(&|m, s| {
            drop(s.rows(m));
            drop(s.rows(m));
            m.sync();
            s.read(m);
        }));
        let mut data = vec![0u8; 8];
        let shared = Shared::new(&mut data, 8);
        let t = team(1);
        t.run(|m| drop(shared.rows(m)));
        assert!(catch_unwind(AssertUnwindSafe(|| t.run(|m| drop(shared.rows(m))))).is_err());
    }

    #[test]
    fn a_panic_in_one_member_ends_the_others() {
        let t = team(4);
        let result = catch_unwind(AssertUnwindSafe(|| {
            t.run(|m| {
                assert!(m.index() != 2, "on purpose");
                m.sync();
                m.sync();
            });
        }));
        assert!(result.is_err());
    }

    #[test]
    fn sizes_out_of_range_are_errors() {
        assert!(matches!(Team::new(0), Err(TeamError::Size { asked: 0 })));
        assert!(Team::new(MAX_THREADS + 1).is_err());
    }

    #[test]
    fn many_more_threads_than_cores_still_finish() {
        let mut sums = vec![0u64; 64];
        let shared = Shared::new(&mut sums, 1);
        team(64).run(|m| {
            for _ in 0..200 {
                shared.rows(m).data()[0] += 1;
                m.sync();
            }
        });
        assert!(sums.iter().all(|s| *s == 200));
    }
}
