//! Heads of every format and of real sizes on real drivers, by the way the engine takes: its client, the worker, the
//! shaders; against the engine's own kernels. Every product must have the CPU's bits.

mod common;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use common::driver::{Software, drivers};
use common::gpu::{LONG, worker};
use common::place::{Place, good, interleaved, twinband};
use common::tiny::{Tiny, encode};
use serde_json::Value;
use twinband::g2bx;
use twinband::gpu::{
    Activations, Driver, Gpu, GpuOptions, HeadMatrix, Input as Job, Limits, Mode, Patience, State, TILE,
};
use twinband::kernel::format::{self, ActBlock, Format, GgmlType, Layout, Matrix};
use twinband::kernel::isa::Isa;
use twinband::kernel::op::matmul::{Input, Scratch, matmul};
use twinband::kernel::op::quantize::Quantised;
use twinband::kernel::par::Cols;
use twinband::sample::Rng;

/// Formats of heads that have a shader.
const FORMATS: [GgmlType; 7] = [
    GgmlType::Q4_0,
    GgmlType::Q4_0S,
    GgmlType::Q8_0,
    GgmlType::Q4_1,
    GgmlType::Q6_K,
    GgmlType::Q4_K,
    GgmlType::F16,
];

/// Bytes before the first row: a whole number of nothing.
const BEFORE: u64 = 4097 * 4 + 2;

/// The range that every device has to let a shader see; lavapipe lets it see no more. A larger band is split.
const RANGE: u64 = 128 << 20;

/// From -1 up to 1.
fn unit(random: &mut Rng) -> f32 {
    (random.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Where in a block its f16 scales are.
fn scales(ty: GgmlType) -> Vec<usize> {
    let first = if ty == GgmlType::Q6_K { 208 } else { 0 };
    [first].into_iter().chain(ty.minimum_at()).collect()
}

/// Blocks of random codes. Scales are ordinary, subnormal, zero or as large as can be: one kind in most rows, all of
/// them mixed in every fifth.
fn weights(format: &Format, rows: usize, cols: usize, random: &mut Rng) -> Vec<u8> {
    let geometry = format.geometry();
    let bytes = rows * geometry.row_bytes(cols).expect("whole blocks");
    let mut out: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).collect();
    out.truncate(bytes);
    let at = scales(format.ty);
    let blocks = cols / geometry.block;
    for (n, block) in out.chunks_exact_mut(geometry.bytes).enumerate() {
        let bits = random.bits();
        let row = n / blocks;
        let kind = if row % 5 == 4 { bits >> 32 & 3 } else { row as u64 % 5 };
        for (i, &at) in at.iter().enumerate() {
            let bits = (bits >> (16 * i)) as u16;
            let scale = match kind {
                0 => bits & 0x8bff | 0x1400, // from 2^-10 to 2^-7
                1 => bits & 0x83ff,          // subnormal
                2 => bits & 0x8000,          // zero
                _ => bits & 0x800f | 0x7bf0, // up to 65504
            };
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    out
}

/// Random numbers, numbers that are all equal, and numbers of extreme sizes: three kinds of blocks in turn.
fn vectors(cols: usize, random: &mut Rng) -> [Vec<f32>; 3] {
    let extreme = (0..cols).map(|i| unit(random) * [1e-20, 1.0, 1e15][i / 32 % 3]).collect();
    [(0..cols).map(|_| unit(random)).collect(), vec![0.37; cols], extreme]
}

/// An activation vector in the form that a format is multiplied by.
struct Vector {
    f32: Vec<f32>,
    form: Option<Quantised>,
}

impl Vector {
    fn new(format: &Format, x: Vec<f32>) -> Self {
        let form = format.act().map(|block| Quantised::new(Isa::Scalar, block, x.len(), &x));
        assert!(form.as_ref().is_none_or(|form| form.finite));
        Self { f32: x, form }
    }

    fn job(&self) -> Job<'_> {
        match &self.form {
            None => Job::F32(&self.f32),
            Some(x) => Job::Q8 { codes: &x.codes, scales: &x.scales, sums: &x.sums },
        }
    }

    /// The CPU's products.
    fn by(&self, isa: Isa, w: Matrix<'_>) -> Vec<f32> {
        let q8 = self.form.as_ref().map(Quantised::q8);
        let form = |block| q8.filter(|q| q.block == block);
        let input =
            Input { f32: &self.f32, n: w.cols(), b32: form(ActBlock::B32), b256: form(ActBlock::B256) };
        let mut out = vec![f32::NAN; w.rows()];
        matmul(isa, false, w, &input, &mut Cols::whole(&mut out, w.rows()), &mut Scratch::default());
        out
    }
}

/// A head of which the last rows are there; the others are a hole in the file.
struct Head {
    format: &'static Format,
    rows: usize,
    cols: usize,
    /// The first row that is there.
    first: usize,
    band: Vec<u8>,
    file: File,
    random: Rng,
}

impl Head {
    /// The last rows of such a head that take no more than `most` bytes.
    fn new(ty: GgmlType, rows: usize, cols: usize, most: u64) -> Self {
        let format = format::of(ty).expect("a format that runs");
        let row_bytes = format.geometry().row_bytes(cols).expect("whole blocks");
        let mut random = Rng::new((rows * 31 + cols) as u64);
        let tile = TILE as usize;
        let first = rows.saturating_sub(most as usize / row_bytes).next_multiple_of(tile);
        let band = weights(format, rows - first, cols, &mut random);
        let file = tempfile::tempfile().expect("a file");
        let at = BEFORE + (first * row_bytes) as u64;
        file.set_len(at).and_then(|()| file.write_all_at(&band, at)).expect("space");
        Self { format, rows, cols, first, band, file, random }
    }

    fn options(driver: &Software, cache: &Path) -> GpuOptions {
        GpuOptions {
            mode: Mode::On,
            worker: Some(worker()),
            driver: Driver::Manifest(driver.manifest.display().to_string()),
            cache_dir: Some(cache.to_owned()),
            patience: Patience { greeting: LONG, open: LONG, load: LONG },
            limits: Limits { silence: LONG, ..Limits::default() },
            ..GpuOptions::default()
        }
    }

    /// Has every row that is there multiplied on the device by vectors of several kinds, and a part of them.
    fn check(&mut self, driver: &Software, cache: &Path, isas: &[Isa]) {
        let Self { format, rows, cols, first, .. } = *self;
        let what = format!("{} {} {rows} x {cols} from {first}", driver.name, format.ty);
        let small = |n: usize| u32::try_from(n).expect("a small number");
        let matrix = HeadMatrix {
            file: self.file.try_clone().expect("a file"),
            offset: BEFORE,
            rows: small(rows),
            cols: small(cols),
            row_bytes: small(self.band.len() / (rows - first)),
            interleaved: false,
            format: format.ty.0,
            activations: match format.act() {
                None => Activations::F32,
                Some(block) => Activations::Q8 { block: small(block.elements()) },
            },
        };
        // Rounding may make it a tile more: rows of the hole.
        let share = (rows - first) as f32 / rows as f32;
        let mut gpu = Gpu::start(Self::options(driver, cache), matrix, share);
        let status = gpu.settle(3 * LONG);
        assert_eq!(status.state, State::Calibrating, "{what}: {status:?}");
        let loaded = status.rows.clone();
        assert!(loaded.end as usize == rows && !loaded.is_empty(), "{what}: {loaded:?}");
        let whole = Matrix::new(format, &self.band, rows - first, cols).expect("the right size");
        let begin = first.max(loaded.start as usize);
        let end = begin.max(rows.saturating_sub(1000) / TILE as usize * TILE as usize);
        for (kind, x) in vectors(cols, &mut self.random).into_iter().enumerate() {
            let x = Vector::new(format, x);
            // All once, the end of the band with every kind of vector.
            let from = if kind == 0 { begin } else { end };
            let mut out = vec![f32::NAN; rows - from];
            let ticket = gpu.submit(&x.job(), small(from)..small(rows)).expect("a job is taken");
            gpu.wait(ticket, Instant::now() + LONG, &mut out).unwrap_or_else(|lost| panic!("{what}: {lost}"));
            for &isa in isas {
                let want = x.by(isa, whole.part(from - first..rows - first));
                assert!(want.iter().all(|y| y.is_finite()), "{what} vector {kind}");
                let wrong = (0..want.len()).find(|&i| out[i].to_bits() != want[i].to_bits());
                assert_eq!(
                    wrong.map(|i| (from + i, out[i], want[i])),
                    None,
                    "{what} vector {kind} by {isa:?}: row, device, CPU"
                );
            }
        }
    }
}

/// Odd sizes whole, with the rows' bits by every instruction set; and a head of a small model whole.
#[test]
fn small_heads_have_the_cpus_bits() {
    let cache = tempfile::tempdir().expect("a folder");
    for ty in FORMATS {
        let started = Instant::now();
        let block = format::of(ty).expect("a format").geometry().block;
        let (few, dim) = if block == 256 { (512, 768) } else { (96, 576) };
        let mut covered = Vec::new();
        for (rows, cols) in [(1, few), (1003, few), (65_537, block.max(32)), (49_152, dim)] {
            let mut head = Head::new(ty, rows, cols, u64::MAX);
            for driver in drivers() {
                head.check(&driver, cache.path(), &Isa::all());
                covered.push(format!("{} {rows} x {cols}", driver.name));
            }
        }
        println!("{ty}: {}; {:.1?}", covered.join(", "), started.elapsed());
    }
}

/// Heads of large vocabularies: their last rows, which lie far behind in the file, and of one shape as many as no
/// single binding may hold.
#[test]
fn large_heads_have_the_cpus_bits() {
    let cache = tempfile::tempdir().expect("a folder");
    for ty in FORMATS {
        let started = Instant::now();
        let block = format::of(ty).expect("a format").geometry().block;
        let dim = if block == 256 { 768 } else { 640 };
        let mut covered = Vec::new();
        for (rows, cols, most) in
            [(128_256, 2048, RANGE + (8 << 20)), (151_936, 1024, 4 << 20), (262_144, dim, 4 << 20)]
        {
            let mut head = Head::new(ty, rows, cols, most);
            for driver in drivers() {
                head.check(&driver, cache.path(), &[Isa::detect()]);
                covered.push(format!("{} {} of {rows} x {cols}", driver.name, rows - head.first));
            }
        }
        println!("{ty}: {}; {:.1?}", covered.join(", "), started.elapsed());
    }
}

/// A file whose head is in the format that only we have: it is read, runs, and a device changes no bit.
#[test]
fn a_model_with_a_head_in_our_own_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let (dim, vocab) = (256, 1003);
    let format = format::of(GgmlType::Q4_0S).expect("a format that runs");
    let mut head = weights(format, vocab, dim, &mut Rng::new(7));
    // Ordinary scales only: with huge ones every answer would be the same token.
    for block in head.chunks_exact_mut(130) {
        block[1] = block[1] & 0x83 | 0x1c;
    }
    let model = Tiny::new()
        .n_vocab(vocab)
        .with(|t| {
            t.dim = dim as u64;
            t.head_dim = 64;
        })
        .raw_tensor("output.weight", &[dim as u64, vocab as u64], GgmlType::Q4_0S, head)
        .write(folder.path(), "q4_0s.gguf");
    let run = |more: &[&str]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_twinband"));
        command.arg("run").arg(&model).args(["the hello and", "--json", "--ignore-eos", "-n", "40"]);
        command.args(["--threads", "2"]).args(more).env("XDG_CACHE_HOME", folder.path());
        let output = command.stdin(Stdio::null()).output().expect("the program starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{more:?}: {text}");
        serde_json::from_slice(&output.stdout).expect("one JSON value")
    };
    let cpu = run(&["--isa", "scalar"]);
    assert_eq!(run(&[])["digest"], cpu["digest"]);
    for driver in drivers() {
        let (worker, manifest) = (worker(), driver.manifest.display().to_string());
        let way = ["--worker", &worker.to_string_lossy(), "--vk-icd", &manifest];
        let both = run(&[&["--gpu", "on", "--gpu-share", "0.5", "--verify", "full"], &way[..]].concat());
        assert_eq!((&both["digest"], &both["text"]), (&cpu["digest"], &cpu["text"]), "{}", both["gpu"]);
        assert!(both["gpu"]["jobs"].as_u64() >= Some(1), "{}: {}", driver.name, both["gpu"]);
    }
}

/// Packed files may have their heads in groups of eight rows, which the worker takes apart, in every format it has.
#[test]
fn interleaved_heads_of_packed_files() {
    let plain = Tiny::new().n_vocab(1003).format(encode::f32).with(|t| {
        t.dim = 256;
        t.head_dim = 64;
    });
    let place = Place::new(&plain);
    for ty in FORMATS.into_iter().filter(|ty| *ty != GgmlType::F16) {
        let model = place.path("interleaved.g2bx");
        interleaved(&place.packed("head.g2bx", &[&"--head", &ty.to_string(), &"--force"]), &model);
        let file = g2bx::open(&model).expect("a model");
        let head = file.tensor("output.weight").expect("a head of its own");
        assert_eq!((head.ty, head.layout), (ty, Layout::Rows8));
        let run = |more: &[&dyn AsRef<OsStr>]| -> Value {
            let args: [&dyn AsRef<OsStr>; 10] = [
                &"run",
                &model,
                &"the hello and",
                &"--json",
                &"--ignore-eos",
                &"-n",
                &"24",
                &"--threads",
                &"2",
                &"-q",
            ];
            serde_json::from_str(&good(&twinband(&[&args[..], more].concat()))).expect("one JSON value")
        };
        let cpu = run(&[&"--isa", &"scalar"]);
        for driver in drivers() {
            let (worker, manifest) = (worker(), &driver.manifest);
            let way: [&dyn AsRef<OsStr>; 4] = [&"--worker", &worker, &"--vk-icd", manifest];
            let gpu: [&dyn AsRef<OsStr>; 6] = [&"--gpu", &"on", &"--gpu-share", &"0.5", &"--verify", &"full"];
            let both = run(&[&gpu[..], &way].concat());
            let what = format!("{ty} on {}: {}", driver.name, both["gpu"]);
            assert_eq!((&both["digest"], &both["text"]), (&cpu["digest"], &cpu["text"]), "{what}");
            assert!(both["gpu"]["jobs"].as_u64() >= Some(1) && both["gpu"]["mismatches"] == 0, "{what}");
        }
    }
}
