//! The exact path decodes one row at a time: however large a matrix is, a worker holds no more floats than a row has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use twinband::kernel::format::{Matrix, all};
use twinband::kernel::isa::Isa;
use twinband::kernel::op::matmul::{Input, Scratch, matmul};
use twinband::kernel::par::Cols;

/// Counts this thread's bytes on their way to the system's allocator.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

#[allow(
    unsafe_code,
    reason = "a global allocator is unsafe by its nature; this one only counts and passes on"
)]
// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_worker_holds_one_row() {
    let (n, isa) = (1024, Isa::detect());
    for format in all() {
        for rows in [8, 800] {
            let bytes = vec![0u8; format.geometry().row_bytes(n).expect("whole blocks") * rows];
            let w = Matrix::new(format, &bytes, rows, n).expect("a matrix");
            for tokens in [1, 5] {
                let x = vec![1.0f32; tokens * n];
                let mut out = vec![0.0f32; tokens * rows];
                let input = Input { f32: &x, n, b32: None, b256: None };
                let mut scratch = Scratch::default();
                for call in 0..3 {
                    let before = ALLOCATED.get();
                    let mut cols = Cols::whole(&mut out, rows);
                    matmul(isa, true, w, &input, &mut cols, &mut scratch);
                    let taken = ALLOCATED.get() - before;
                    let allowed = if call == 0 { n * size_of::<f32>() } else { 0 };
                    assert!(taken <= allowed, "{}, {rows} rows, call {call}: {taken} bytes", format.ty);
                }
            }
        }
    }
}
