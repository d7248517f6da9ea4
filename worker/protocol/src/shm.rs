//! Bulk data: one memory file that engine and worker both map.
//!
//! ```text
//! 0..HEADER            magic, layout: written once by the engine
//! slot 0               codes i8 [cols] | scales f32 [cols / block] | sums i16 [cols / 16]   (or f32 [cols])
//!                      results f32 [rows]
//! slot 1 ..
//! ```
//! Each part begins on a multiple of 64 bytes. The engine writes a slot's activations before it sends a job that names
//! the slot and reads the results after the answer. It holds the other side to nothing: sizes come from the layout it
//! made itself, results are copied before they are looked at, and any bytes are valid floats. A worker that breaks the
//! rules, or is stopped in the middle of them, makes numbers wrong; numbers are verified.
//!
//! After a worker is lost its file is lost with it: a fresh worker gets a fresh one, because a stopped process may still
//! wake up and write.
#![allow(unsafe_code, reason = "memory that another process writes is reached through raw pointers")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use thiserror::Error;

const MAGIC: [u8; 8] = *b"TWBSHM02";
const HEADER: usize = 64;
const ALIGN: usize = 64;
/// Sizes beyond these are mistakes, not models.
const MAX_COLS: u32 = 1 << 20;
const MAX_ROWS: u32 = 1 << 24;
const MAX_SLOTS: u32 = 16;

/// The form of the activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// int8 codes with an f32 scale for every block of this many, and sums of every 16 codes.
    Q8 {
        /// 32 or 256.
        block: u32,
    },
    /// f32.
    F32,
}

/// What the buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Elements of an activation vector.
    pub cols: u32,
    /// Their form.
    pub activations: Activations,
    /// Results of the largest job.
    pub rows: u32,
    /// Jobs that can be under way without one overwriting another's data; at least 2.
    pub slots: u32,
}

/// A buffer cannot be made or used.
#[derive(Debug, Error)]
pub enum ShmError {
    /// The system refused.
    #[error("cannot {what} the shared buffer: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The layout is impossible.
    #[error("a shared buffer for {0:?} is not possible")]
    Layout(Layout),
    /// The file is not such a buffer, or not of the size its header asks for.
    #[error("the shared buffer is damaged: {0}")]
    Damaged(&'static str),
}

fn system(what: &'static str) -> impl FnOnce(nix::Error) -> ShmError {
    move |errno| ShmError::System { what, source: errno.into() }
}

/// A part of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// i8 `[cols]`, or f32 `[cols]` where activations are [`Activations::F32`].
    Codes,
    /// f32 `[cols / block]`; empty for f32 activations.
    Scales,
    /// i16 `[cols / 16]`; empty for f32 activations.
    Sums,
    /// f32 `[rows]`
    Results,
}

impl Layout {
    fn check(self) -> Result<Self, ShmError> {
        let unit = match self.activations {
            Activations::Q8 { block: block @ (32 | 256) } => block,
            Activations::Q8 { .. } => return Err(ShmError::Layout(self)),
            Activations::F32 => 1,
        };
        let fits = (1..=MAX_COLS).contains(&self.cols)
            && self.cols.is_multiple_of(unit)
            && (1..=MAX_ROWS).contains(&self.rows)
            && (2..=MAX_SLOTS).contains(&self.slots);
        if fits { Ok(self) } else { Err(ShmError::Layout(self)) }
    }

    /// Bytes of a part.
    pub fn bytes(&self, part: Part) -> usize {
        let (cols, rows) = (self.cols as usize, self.rows as usize);
        match (part, self.activations) {
            (Part::Codes, Activations::Q8 { .. }) => cols,
            (Part::Codes, Activations::F32) => cols * 4,
            (Part::Scales, Activations::Q8 { block }) => cols / block as usize * 4,
            (Part::Sums, Activations::Q8 { .. }) => cols / 16 * 2,
            (Part::Scales | Part::Sums, Activations::F32) => 0,
            (Part::Results, _) => rows * 4,
        }
    }

    /// Where a part of a slot begins, from the start of the file.
    pub fn offset(&self, slot: u32, part: Part) -> usize {
        let before = [Part::Codes, Part::Scales, Part::Sums, Part::Results];
        let within =
            before.iter().take_while(|p| **p != part).map(|p| self.bytes(*p).next_multiple_of(ALIGN));
        HEADER + slot as usize * self.slot_bytes() + within.sum::<usize>()
    }

    fn slot_bytes(&self) -> usize {
        let parts = [Part::Codes, Part::Scales, Part::Sums, Part::Results];
        parts.iter().map(|p| self.bytes(*p).next_multiple_of(ALIGN)).sum()
    }

    /// Bytes of the whole file.
    pub fn total(&self) -> usize {
        HEADER + self.slots as usize * self.slot_bytes()
    }

    fn header(&self) -> [u8; HEADER] {
        let kind = match self.activations {
            Activations::F32 => 0,
            Activations::Q8 { block } => block,
        };
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        for (i, v) in [self.cols, kind, self.rows, self.slots].into_iter().enumerate() {
            header[8 + 4 * i..12 + 4 * i].copy_from_slice(&v.to_le_bytes());
        }
        header
    }

    fn from_header(header: &[u8; HEADER]) -> Result<Self, ShmError> {
        if header[..8] != MAGIC {
            return Err(ShmError::Damaged("it does not begin like one"));
        }
        let word = |i: usize| {
            let at = 8 + 4 * i;
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let activations = match word(1) {
            0 => Activations::F32,
            block => Activations::Q8 { block },
        };
        Self { cols: word(0), activations, rows: word(2), slots: word(3) }.check()
    }
}

/// Numbers that a part can hold: plain data without padding for which any bytes are valid.
pub trait Element: Copy + sealed::Sealed {}

impl Element for i8 {}
impl Element for i16 {}
impl Element for f32 {}

mod sealed {
    pub trait Sealed {}

    impl Sealed for i8 {}
    impl Sealed for i16 {}
    impl Sealed for f32 {}
}

/// The buffer, mapped.
pub struct Shared {
    layout: Layout,
    map: MmapRaw,
    file: File,
}

impl Shared {
    /// Makes a buffer: zeros, with a size that nobody can change.
    pub fn create(layout: Layout) -> Result<Self, ShmError> {
        let layout = layout.check()?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"twinband", flags).map_err(system("create"))?);
        file.set_len(layout.total() as u64).map_err(|source| ShmError::System { what: "size", source })?;
        // Sealed, so that neither side can make the other's map fault by cutting the file.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(system("seal"))?;
        let shared = Self::map(file, layout)?;
        shared.copy_in(0, &layout.header());
        Ok(shared)
    }

    /// Maps the buffer that the other side made.
    pub fn open(fd: OwnedFd) -> Result<Self, ShmError> {
        let file = File::from(fd);
        let size = file.metadata().map_err(|source| ShmError::System { what: "examine", source })?.len();
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map_err(system("examine"))?;
        if seals & SealFlag::F_SEAL_SHRINK.bits() == 0 || size < HEADER as u64 {
            return Err(ShmError::Damaged("its size is not sealed"));
        }
        let mut header = [0; HEADER];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut header, 0)
            .map_err(|source| ShmError::System { what: "read", source })?;
        let layout = Layout::from_header(&header)?;
        if size != layout.total() as u64 {
            return Err(ShmError::Damaged("its size is not what its header says"));
        }
        Self::map(file, layout)
    }

    fn map(file: File, layout: Layout) -> Result<Self, ShmError> {
        let map = MmapOptions::new()
            .len(layout.total())
            .map_raw(&file)
            .map_err(|source| ShmError::System { what: "map", source })?;
        Ok(Self { layout, map, file })
    }

    /// What it holds.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The file, to hand on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes the first bytes of a part.
    ///
    /// # Panics
    /// If there is no such slot or the part is smaller.
    pub fn write(&self, slot: u32, part: Part, bytes: &[u8]) {
        assert!(
            slot < self.layout.slots && bytes.len() <= self.layout.bytes(part),
            "{part:?} of slot {slot}"
        );
        self.copy_in(self.layout.offset(slot, part), bytes);
    }

    /// Copies bytes of a part from `at` on.
    ///
    /// # Panics
    /// If there is no such slot or the part is smaller.
    pub fn read(&self, slot: u32, part: Part, at: usize, bytes: &mut [u8]) {
        let size = self.layout.bytes(part);
        assert!(
            slot < self.layout.slots && at <= size && bytes.len() <= size - at,
            "{part:?} of slot {slot}"
        );
        let from = self.layout.offset(slot, part) + at;
        // SAFETY: `from + len` lies in the map, whose size is sealed (checked above against the layout that the map was
        // made with); `bytes` is ours alone. The other process may write meanwhile: then bytes are mixed, and all are
        // valid.
        unsafe { std::ptr::copy_nonoverlapping(self.map.as_ptr().add(from), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Writes the first elements of a part, in this machine's byte order.
    ///
    /// # Panics
    /// If there is no such slot or the part is smaller.
    pub fn put<T: Element>(&self, slot: u32, part: Part, elements: &[T]) {
        // SAFETY: an element is plain data without padding (see `Element`), so its bytes may be read as such; the slice
        // covers exactly the elements.
        let bytes =
            unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) };
        self.write(slot, part, bytes);
    }

    /// Copies elements of a part from element `at` on.
    ///
    /// # Panics
    /// If there is no such slot or the part is smaller.
    pub fn get<T: Element>(&self, slot: u32, part: Part, at: usize, elements: &mut [T]) {
        // SAFETY: any bytes make a valid element (see `Element`), so they may be written as such; the slice covers
        // exactly the elements.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), size_of_val(elements))
        };
        self.read(slot, part, at.saturating_mul(size_of::<T>()), bytes);
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.layout.total());
        // SAFETY: the range lies in the map, whose size is sealed; `bytes` is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len()) }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("layout", &self.layout).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    const LAYOUT: Layout =
        Layout { cols: 96, activations: Activations::Q8 { block: 32 }, rows: 1003, slots: 2 };

    #[test]
    fn both_sides_see_the_same_bytes_and_parts_do_not_overlap() {
        let ours = Shared::create(LAYOUT).expect("a buffer");
        let theirs = Shared::open(ours.fd().try_clone_to_owned().expect("a descriptor")).expect("the buffer");
        assert_eq!(theirs.layout(), LAYOUT);
        let parts = [Part::Codes, Part::Scales, Part::Sums, Part::Results];
        let mut fill = 1u8;
        for slot in 0..2 {
            for part in parts {
                ours.write(slot, part, &vec![fill; LAYOUT.bytes(part)]);
                fill += 1;
            }
        }
        let mut want = 1u8;
        for slot in 0..2 {
            for part in parts {
                let mut got = vec![0; LAYOUT.bytes(part)];
                theirs.read(slot, part, 0, &mut got);
                assert!(got.iter().all(|&b| b == want), "{part:?} of slot {slot}");
                assert_eq!(LAYOUT.offset(slot, part) % ALIGN, 0);
                want += 1;
            }
        }
        let mut tail = [0; 4];
        theirs.read(1, Part::Results, 1002 * 4, &mut tail);
        assert_eq!(tail, [8; 4]);
    }

    #[test]
    fn numbers_come_back() {
        let shared = Shared::create(LAYOUT).expect("a buffer");
        shared.put(1, Part::Codes, &[-128i8, 127]);
        shared.put(1, Part::Sums, &[-300i16, 7]);
        shared.put(1, Part::Results, &[0.1f32, f32::NEG_INFINITY, -0.0]);
        let (mut codes, mut sums, mut results) = ([0i8; 2], [0i16; 1], [0f32; 2]);
        shared.get(1, Part::Codes, 0, &mut codes);
        shared.get(1, Part::Sums, 1, &mut sums);
        shared.get(1, Part::Results, 1, &mut results);
        assert_eq!((codes, sums), ([-128, 127], [7]));
        assert_eq!(results.map(f32::to_bits), [f32::NEG_INFINITY, -0.0].map(f32::to_bits));
        let mut raw = [0; 4];
        shared.read(1, Part::Sums, 0, &mut raw);
        assert_eq!(raw, [0xd4, 0xfe, 7, 0]);
    }

    #[test]
    fn the_size_is_sealed() {
        let shared = Shared::create(LAYOUT).expect("a buffer");
        assert!(shared.file.set_len(10).is_err());
        assert!(shared.file.set_len(1 << 20).is_err());
    }

    #[test]
    fn impossible_layouts_and_foreign_files_are_refused() {
        for bad in [
            Layout { cols: 0, ..LAYOUT },
            Layout { cols: 100, ..LAYOUT },
            Layout { rows: 0, ..LAYOUT },
            Layout { slots: 1, ..LAYOUT },
            Layout { cols: u32::MAX, ..LAYOUT },
            Layout { activations: Activations::Q8 { block: 7 }, ..LAYOUT },
        ] {
            assert!(matches!(Shared::create(bad), Err(ShmError::Layout(_))), "{bad:?}");
        }
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[0; 4096]).expect("space");
        assert!(Shared::open(file.into()).is_err());
        let flags = MFdFlags::MFD_ALLOW_SEALING;
        let other = File::from(memfd_create(c"other", flags).expect("a memory file"));
        other.set_len(4096).expect("a size");
        fcntl(&other, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("a seal");
        assert!(matches!(Shared::open(other.into()), Err(ShmError::Damaged(_))));
    }

    #[test]
    #[should_panic(expected = "Results of slot 2")]
    fn slots_are_checked() {
        Shared::create(LAYOUT).expect("a buffer").write(2, Part::Results, &[0]);
    }
}
