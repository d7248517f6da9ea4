//! The exact path decodes one row at a time: however large a matrix is, a worker holds no more floats than a row has.

mod common;

use common::counting::{Counting, bytes_of_this_thread};
use twinband::kernel::format::{Matrix, all};
use twinband::kernel::isa::Isa;
use twinband::kernel::op::matmul::{Input, Scratch, matmul};
use twinband::kernel::par::Cols;

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
                    let before = bytes_of_this_thread();
                    let mut cols = Cols::whole(&mut out, rows);
                    matmul(isa, true, w, &input, &mut cols, &mut scratch);
                    let taken = bytes_of_this_thread() - before;
                    let allowed = if call == 0 { n * size_of::<f32>() } else { 0 };
                    assert!(taken <= allowed, "{}, {rows} rows, call {call}: {taken} bytes", format.ty);
                }
            }
        }
    }
}
