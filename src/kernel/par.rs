//! Threads: a [`Team`] runs one closure on all of its members, who meet at barriers inside it.
//!
//! A token is computed in one such region, not in one fork and join per matrix: waking threads costs
//! microseconds, a barrier that spins first costs a fraction of one.
//!
//! Members write disjoint parts of common buffers. [`Shared`] makes that safe: between two barriers a
//! buffer is either read by everyone or written in parts that one fixed rule deals out, each part to one
//! member: by position, or by position first and then to whoever is free. A breach is a panic at the claim, not a data race. Which
//! thread computes an element never affects its value, and neither does how a buffer is cut.
#![allow(
    unsafe_code,
    reason = "hands out disjoint parts of one buffer to several threads, after checking the claim"
)]

mod barrier;
mod deal;

use barrier::Barrier;
use deal::{PIECES, Shares, Turn};
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most threads a team can have.
pub const MAX_THREADS: usize = 256;

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
        let turns: [Turn; MAX_THREADS] = std::array::from_fn(|_| Turn::default());
        // 0 means "no owner yet" in Shared.
        let run = RUNS.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        self.pool.broadcast(|ctx| {
            let (index, turns, deals) = (ctx.index(), &turns[..self.size], Cell::new(0));
            let mut member = Member { index, run, epoch: 1, deals, turns, barrier: &barrier };
            let _alarm = Alarm(&barrier);
            f(&mut member);
        });
    }
}

/// One thread's place in a running team.
pub struct Member<'t> {
    index: usize,
    run: u32,
    epoch: u32,
    /// Buffers that were dealt in tiles since the last barrier.
    deals: Cell<u64>,
    /// One a member.
    turns: &'t [Turn],
    barrier: &'t Barrier,
}

impl Member<'_> {
    /// This member's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.turns.len()
    }

    /// Waits until every member is here. Takes `&mut self`, so no claim of a [`Shared`] outlives it.
    pub fn sync(&mut self) {
        if self.size() > 1 {
            self.barrier.wait();
        }
        self.epoch += 1;
        self.deals.set(0);
    }

    /// This member's part of `n` items dealt in whole units of `unit` (the last may be short), as evenly as
    /// units allow.
    pub fn part(&self, n: usize, unit: usize) -> Range<usize> {
        part(n, unit, self.index, self.size())
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
            self.0.breach();
        }
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

// SAFETY: a `Shared` gives out references only through `read`, `rows`, `first_rows`, `strip`, `cols`, `tiles` and `bands`, whose claims
// (see `enter`) keep writers of one epoch disjoint and readers and writers in different epochs.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

/// How a buffer is used between two barriers.
#[derive(Clone, Copy)]
enum Mode {
    Read,
    Rows(usize),
    /// So many rows, dealt in units of so many.
    FirstRows(usize, usize),
    Cols(usize),
    /// The number of the deal, rows and columns of a tile.
    Tiles(u64, usize, usize),
}

impl Mode {
    fn tag(self) -> u64 {
        match self {
            Self::Read => 0,
            Self::Rows(unit) => 1 | (unit as u64) << 3,
            Self::Cols(unit) => 2 | (unit as u64) << 3,
            Self::FirstRows(count, unit) => 4 | (unit as u64) << 3 | (count as u64) << 9,
            Self::Tiles(deal, rows, unit) => 3 | deal << 3 | (rows as u64) << 6 | (unit as u64) << 11,
        }
    }
}

impl<'a, T> Shared<'a, T> {
    /// Columns are dealt in units of fewer than this.
    pub const UNITS: usize = 1 << 29;

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
        self.own_rows(m, Mode::Rows(1), m.part(self.height(), 1))
    }

    /// This member's of the first `count` rows, dealt in units of `unit`.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers, or has not so many rows.
    pub fn first_rows<'m>(&'m self, m: &'m Member<'_>, count: usize, unit: usize) -> Rows<'m, T> {
        assert!(unit < 64, "units of {unit} rows");
        self.own_rows(m, Mode::FirstRows(count, unit), m.part(count, unit))
    }

    fn own_rows<'m>(&'m self, m: &'m Member<'_>, mode: Mode, range: Range<usize>) -> Rows<'m, T> {
        let guard = self.enter_writing(m, mode);
        let cells = &self.data[range.start * self.width..range.end * self.width];
        // SAFETY: `part` gives each member other rows, in this epoch nobody reads, and `guard` keeps this
        // member from claiming twice.
        let data = unsafe { std::slice::from_raw_parts_mut(cells.as_ptr() as *mut T, cells.len()) };
        Rows { data, first: range.start, width: self.width, _guard: guard }
    }

    /// All columns of this member's rows, dealt in units of `unit` rows.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers.
    pub fn strip<'m>(&'m self, m: &'m Member<'_>, unit: usize) -> Cols<'m, T> {
        let guard = self.enter_writing(m, Mode::Rows(unit));
        let rows = m.part(self.height(), unit);
        let data = &self.data[rows.start * self.width..rows.end * self.width];
        // `part` gives each member other rows.
        Cols { data, width: self.width, first_row: rows.start, range: 0..self.width, _guard: Some(guard) }
    }

    /// This member's columns of every row, dealt in units of `unit` columns.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers.
    pub fn cols<'m>(&'m self, m: &'m Member<'_>, unit: usize) -> Cols<'m, T> {
        let guard = self.enter_writing(m, Mode::Cols(unit));
        let range = m.part(self.width, unit);
        Cols { data: self.data, width: self.width, first_row: 0, range, _guard: Some(guard) }
    }

    /// Tiles of `unit` columns of every row (the last may be narrower). A member is dealt those of about its [`cols`](Self::cols),
    /// so that what it writes now and reads next stays in its own cache; then those that others have not come to.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers.
    pub fn tiles<'m>(&'m self, m: &'m Member<'_>, unit: usize) -> Tiles<'m, T> {
        self.deal(m, 0, unit)
    }

    /// Tiles of `unit` columns of up to `rows` rows (the last may have fewer), dealt like [`tiles`](Self::tiles). Those of the
    /// same columns come one after the other, so that what all of them read stays in the cache.
    ///
    /// # Panics
    /// If the buffer is used differently between the same two barriers, a row is not a whole number of tiles, or `rows` is
    /// not one to 16.
    pub fn bands<'m>(&'m self, m: &'m Member<'_>, rows: usize, unit: usize) -> Tiles<'m, T> {
        assert!(self.width.is_multiple_of(unit), "rows of {} in tiles of {unit}", self.width);
        assert!((1..=16).contains(&rows), "tiles of {rows} rows");
        self.deal(m, rows, unit)
    }

    /// Tiles of `rows` rows (0: all) and `unit` columns.
    fn deal<'m>(&'m self, m: &'m Member<'_>, rows: usize, unit: usize) -> Tiles<'m, T> {
        let deal = m.deals.get();
        assert!(deal < 8, "more than eight buffers are dealt between two barriers");
        m.deals.set(deal + 1);
        // All members deal the same buffers in the same order: the number in the claim sees to it.
        self.enter(m, Mode::Tiles(deal, rows, unit));
        let rows = if rows == 0 { self.height().max(1) } else { rows };
        let pieces = self.height().div_ceil(rows) * self.width.div_ceil(unit);
        assert!(pieces < 1 << PIECES, "{pieces} tiles");
        let shares = Shares { turns: m.turns, deal: u64::from(m.epoch) << 3 | deal, of: m.index, pieces };
        Tiles { data: self.data, width: self.width, rows, unit, shares }
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

/// A range of columns of some rows of a matrix, for writing.
pub struct Cols<'m, T> {
    data: &'m [UnsafeCell<T>],
    width: usize,
    first_row: usize,
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
        Self { data: unsafe { &*cells }, width, first_row: 0, range: 0..width, _guard: None }
    }

    /// The columns.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The number of the first of these rows.
    pub fn first_row(&self) -> usize {
        self.first_row
    }

    /// Number of rows.
    pub fn height(&self) -> usize {
        self.data.len() / self.width
    }

    /// These columns of row `r` (of these rows).
    #[inline]
    pub fn row(&mut self, r: usize) -> &mut [T] {
        let cells = &self.data[r * self.width..][self.range.clone()];
        // SAFETY: nobody else has these columns (parts and tiles are disjoint, or the borrow is exclusive), and
        // `&mut self` keeps this member to one row at a time.
        unsafe { std::slice::from_raw_parts_mut(cells.as_ptr() as *mut T, cells.len()) }
    }
}

/// Tiles of a [`Shared`], one after the other.
pub struct Tiles<'m, T> {
    data: &'m [UnsafeCell<T>],
    width: usize,
    rows: usize,
    unit: usize,
    shares: Shares<'m>,
}

impl<T> Tiles<'_, T> {
    /// The next tile, and the columns that its member will probably be dealt then. `None` after the last; before that, nobody
    /// may go on to the next buffer that is dealt in tiles.
    pub fn advance(&mut self) -> Option<(Cols<'_, T>, Range<usize>)> {
        let height = self.data.len() / self.width;
        let down = height.div_ceil(self.rows);
        let columns = |tile: usize| {
            let start = (tile / down * self.unit).min(self.width);
            start..(start + self.unit).min(self.width)
        };
        let (tile, end) = self.shares.take()?;
        let (row, range) = (tile % down * self.rows, columns(tile));
        let data = &self.data[row * self.width..(row + self.rows).min(height) * self.width];
        // Nobody else is dealt this tile until the next barrier, and `&mut self` ends the last tile's claim to its own.
        let cols = Cols { data, width: self.width, first_row: row, range, _guard: None };
        let then = if tile + 1 < end { columns(tile + 1) } else { 0..0 };
        Some((cols, then))
    }
}

#[cfg(test)]
mod tests;
