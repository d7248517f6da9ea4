//! The matrix kernels alone, one format after the other: `cargo bench`, or `cargo bench -- decode` for one group.
//!
//! - `decode`: one token by a matrix of `TWINBAND_BENCH_MB` megabytes (64 unless set; more than the last-level cache holds, if
//!   the memory's speed is the question). The column of bytes is the speed at which weights are read.
//! - `read`: the same matrix only added up: what decoding cannot exceed.
//! - `prefill`: 64 tokens by a matrix of 2048 x 2048. An item is one multiply-add.
//!
//! `TWINBAND_BENCH_THREADS` (all cores unless set) and `TWINBAND_BENCH_ISA` (`auto`) choose the rest.

use std::env;
use std::hint::black_box;
use std::str::FromStr;
use std::sync::Mutex;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use twinband::host::Host;
use twinband::kernel::format::{self, ActBlock, Format, Matrix};
use twinband::kernel::isa::Isa;
use twinband::kernel::op::matmul::{Input, Product as Tiled, ROW_UNIT, Scratch, tile_rows};
use twinband::kernel::op::quantize::Quantised;
use twinband::kernel::op::read;
use twinband::kernel::par::{Shared, Team};
use twinband::sample::Rng;
use twinband::synth::blocks;

/// Elements in a row: whole blocks of every format, and as many as the hidden state of a model of a billion weights.
const COLS: usize = 2048;
const PREFILL_ROWS: usize = 2048;
const PREFILL_TOKENS: usize = 64;

fn main() {
    divan::main();
}

fn names() -> Vec<String> {
    format::all().map(|format| format.ty.to_string()).collect()
}

/// The value of a variable, `default` where it is not set.
fn setting<T: FromStr>(name: &str, default: T) -> T {
    match env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a value of its kind")),
        Err(_) => default,
    }
}

/// Activations of several tokens in all forms.
struct Activations {
    f32: Vec<f32>,
    forms: [Quantised; 2],
}

impl Activations {
    fn new(tokens: usize) -> Self {
        let mut rng = Rng::new(1);
        let f32: Vec<f32> = (0..tokens * COLS).map(|_| 2.0 * rng.uniform() as f32 - 1.0).collect();
        let forms = [ActBlock::B32, ActBlock::B256];
        let forms = forms.map(|block| Quantised::new(Isa::Scalar, block, COLS, &f32));
        Self { f32, forms }
    }

    fn input(&self) -> Input<'_> {
        let [b32, b256] = self.forms.each_ref().map(|form| Some(form.q8()));
        Input { f32: &self.f32, n: COLS, b32, b256 }
    }
}

/// A matrix, its threads, and room for its products.
struct Product {
    format: &'static Format,
    bytes: Vec<u8>,
    rows: usize,
    team: Team,
    isa: Isa,
    activations: Activations,
    out: Vec<f32>,
    scratch: Vec<Mutex<Scratch>>,
}

impl Product {
    fn new(name: &str, tokens: usize, rows: impl Fn(usize) -> usize) -> Self {
        let format = format::all().find(|f| f.ty.to_string() == name).expect("a name from the list");
        let row_bytes = format.geometry().row_bytes(COLS).expect("whole blocks");
        let rows = rows(row_bytes).next_multiple_of(ROW_UNIT);
        let mut bytes = vec![0; rows * row_bytes];
        blocks::fill(format.ty, 0.02, &mut Rng::new(0), &mut bytes);
        let threads = setting("TWINBAND_BENCH_THREADS", Host::new().default_threads());
        let isa = Isa::by_name(&setting("TWINBAND_BENCH_ISA", "auto".to_owned())).expect("a known set");
        Self {
            format,
            bytes,
            rows,
            team: Team::new(threads).expect("a team"),
            isa,
            activations: Activations::new(tokens),
            out: vec![0.0; tokens * rows],
            scratch: (0..threads).map(|_| Mutex::default()).collect(),
        }
    }

    /// A matrix for decoding.
    fn large(name: &str) -> Self {
        let megabytes = setting("TWINBAND_BENCH_MB", 64usize);
        Self::new(name, 1, |row_bytes| (megabytes * 1_000_000 / row_bytes).max(1))
    }

    fn multiply(&mut self) {
        let w = Matrix::new(self.format, &self.bytes, self.rows, COLS).expect("the shape it was made for");
        let x = self.activations.input();
        let out = Shared::new(&mut self.out, self.rows);
        self.team.run(|member| {
            let mut scratch = self.scratch[member.index()].lock().expect("each member has its own");
            let mut tiles = out.tiles(member, tile_rows(out.width(), out.height(), member.size()));
            Tiled::new(self.isa, false, w, &x, None, &mut scratch).all(&mut tiles, |_| ());
        });
        black_box(&self.out);
    }

    fn read(&self) {
        read::read(self.isa, &self.team, &[&self.bytes]);
    }
}

#[divan::bench(args = names(), sample_count = 15, sample_size = 1)]
fn decode(bencher: Bencher, name: &str) {
    let mut product = Product::large(name);
    bencher.counter(BytesCount::new(product.bytes.len())).bench_local(|| product.multiply());
}

#[divan::bench(sample_count = 15, sample_size = 1)]
fn read(bencher: Bencher) {
    let product = Product::large("Q8_0");
    bencher.counter(BytesCount::new(product.bytes.len())).bench_local(|| product.read());
}

#[divan::bench(args = names(), sample_count = 15, sample_size = 1)]
fn prefill(bencher: Bencher, name: &str) {
    let mut product = Product::new(name, PREFILL_TOKENS, |_| PREFILL_ROWS);
    let products = PREFILL_ROWS * COLS * PREFILL_TOKENS;
    bencher.counter(ItemsCount::new(products)).bench_local(|| product.multiply());
}
