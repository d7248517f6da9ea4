//! A small matrix in a file and the definition of its products, for tests of the worker; and looks at processes.

#![allow(dead_code, reason = "every test program compiles this file and uses a part of it")]

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use half::f16;
use tempfile::TempDir;
use twinband::gpu::{Activations, Backend, Gpu, GpuOptions, HeadMatrix, Input, Mode, Patience, Status};
use twinband::sample::Rng;

/// Rows of the matrix: the last tile is not full.
pub const ROWS: u32 = 1003;
/// Elements of a row.
pub const COLS: usize = 96;
/// Longer than anything takes that works.
pub const LONG: Duration = Duration::from_secs(30);

/// The rows do not begin where the file begins, nor on a round number.
const OFFSET: usize = 4097;

/// The worker's program, which `cargo test --workspace` builds beside that of the engine.
pub fn worker() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_twinband")).with_file_name("twinband-worker");
    assert!(
        path.exists(),
        "{} is missing: test with `cargo test --workspace`, which builds it",
        path.display()
    );
    path
}

/// Quantised activations.
pub struct Activation {
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i16>,
}

impl Activation {
    pub fn input(&self) -> Input<'_> {
        Input::Q8 { codes: &self.codes, scales: &self.scales, sums: &self.sums }
    }
}

/// The matrix and a folder of its own.
pub struct Fixture {
    dir: PathBuf,
    _temporary: Option<TempDir>,
    format: u32,
    row_bytes: usize,
    weights: Vec<u8>,
}

impl Fixture {
    /// A matrix in Q4_0 (2) or Q8_0 (8).
    pub fn new(format: u32) -> Self {
        let temporary = tempfile::tempdir().expect("a folder");
        let fixture = Self::again(format, temporary.path());
        let file = [&vec![0xee; OFFSET][..], &fixture.weights].concat();
        fs::write(fixture.path("model"), file).expect("space for the model");
        Self { _temporary: Some(temporary), ..fixture }
    }

    /// The one that another process made.
    pub fn again(format: u32, dir: &Path) -> Self {
        let block = if format == 2 { 18 } else { 34 };
        let row_bytes = COLS / 32 * block;
        let mut random = Rng::new(u64::from(format));
        let mut weights = Vec::new();
        for _ in 0..ROWS as usize * COLS / 32 {
            let scale = match random.bits() % 8 {
                0 => f16::from_bits((random.bits() % 1024) as u16), // zero or subnormal
                1 => f16::from_f32(-60000.0),
                _ => f16::from_f32((random.bits() % 2001) as f32 / 1000.0 - 1.0),
            };
            weights.extend(scale.to_le_bytes());
            weights.extend((2..block).map(|_| random.bits() as u8));
        }
        Self { dir: dir.to_owned(), _temporary: None, format, row_bytes, weights }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The null device with these orders, patient, with a cache of its own.
    pub fn options(&self, orders: &str) -> GpuOptions {
        GpuOptions {
            mode: Mode::On,
            worker: Some(worker()),
            backend: Backend::Null(orders.to_owned()),
            cache_dir: Some(self.path("cache")),
            patience: Patience { greeting: LONG, open: LONG, load: LONG },
            ..GpuOptions::default()
        }
    }

    pub fn matrix(&self) -> HeadMatrix {
        HeadMatrix {
            file: fs::File::open(self.path("model")).expect("the model"),
            offset: OFFSET as u64,
            rows: ROWS,
            cols: COLS as u32,
            row_bytes: self.row_bytes as u32,
            interleaved: false,
            format: self.format,
            activations: Activations::Q8 { block: 32 },
        }
    }

    /// The n-th of many inputs.
    pub fn input(&self, n: u64) -> Activation {
        let mut random = Rng::new(n);
        let codes: Vec<i8> =
            (0..COLS).map(|_| (random.bits() % 255) as i16 as i8).map(|c| c.max(-127)).collect();
        let scales = (0..COLS / 32).map(|_| (random.bits() % 1000) as f32 / 333.0).collect();
        let sums = codes.chunks(16).map(|c| c.iter().map(|&c| i16::from(c)).sum()).collect();
        Activation { codes, scales, sums }
    }

    /// The products by definition: exact integers in a block, one accumulator, every operation rounded by itself.
    pub fn expected(&self, x: &Activation, rows: Range<u32>) -> Vec<f32> {
        let row = |r: u32| {
            let row = &self.weights[r as usize * self.row_bytes..][..self.row_bytes];
            let mut acc = 0f32;
            for (b, block) in row.chunks(self.row_bytes * 32 / COLS).enumerate() {
                let weight = |i: usize| match self.format {
                    2 if i < 16 => i32::from(block[2 + i] & 15) - 8,
                    2 => i32::from(block[2 + i - 16] >> 4) - 8,
                    _ => i32::from(block[2 + i] as i8),
                };
                let isum: i32 = (0..32).map(|i| weight(i) * i32::from(x.codes[b * 32 + i])).sum();
                let scale = f16::from_le_bytes([block[0], block[1]]).to_f32() * x.scales[b];
                acc += isum as f32 * scale;
            }
            acc
        };
        rows.map(row).collect()
    }

    /// Bytes of a file, 0 if it is not there.
    pub fn size(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).map_or(0, |meta| meta.len())
    }

    pub fn wait_for_size(&self, name: &str, size: u64) {
        let started = Instant::now();
        while self.size(name) < size {
            assert!(started.elapsed() < LONG, "{name} has {} bytes, not {size}", self.size(name));
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Polls until something is so.
    pub fn until(&self, gpu: &mut Gpu, so: impl Fn(&Status) -> bool) {
        let started = Instant::now();
        while !so(gpu.poll(Instant::now())) {
            assert!(started.elapsed() < LONG, "{:?}", gpu.status());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The number of every process.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("the process table");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// State letter, parent and number of every process.
fn processes() -> Vec<(char, u32, u32)> {
    pids()
        .filter_map(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let mut fields = stat.rsplit_once(") ")?.1.split(' ');
            Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?, pid))
        })
        .collect()
}

/// Ended children of a process that it has not taken notice of.
pub fn zombies_of(parent: u32) -> usize {
    processes().iter().filter(|(state, of, _)| *state == 'Z' && *of == parent).count()
}

/// The running workers that a process has for a fixture's model.
pub fn workers_of(parent: u32, fixture: &Fixture) -> Vec<u32> {
    let model = fixture.path("model");
    let has_model = |pid: u32| fs::read_link(format!("/proc/{pid}/fd/4")).is_ok_and(|target| target == model);
    let children = processes().into_iter().filter(|(_, of, _)| *of == parent).map(|(_, _, pid)| pid);
    children.filter(|pid| has_model(*pid)).collect()
}

/// Waits until a process has ended, whether or not its parent has taken notice, and tells how long that took.
pub fn wait_until_gone(pid: u32, patience: Duration) -> Duration {
    let started = Instant::now();
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state.is_none_or(|state| state == 'Z' || state == 'X') {
            return started.elapsed();
        }
        assert!(started.elapsed() < patience, "process {pid} is still there: {stat}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal by name.
pub fn signal(name: &str, pid: u32) {
    let status =
        Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().expect("kill runs");
    assert!(status.success(), "kill -{name} {pid}");
}
