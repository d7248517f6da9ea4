//! A device put to work: small matrices, their products compared with the CPU's bit for bit, and times.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cli::gpu::Quantiles;
use crate::cli::report::median;
use crate::gpu::{
    Activations, Device, DeviceKind, Done, Driver, Gpu, GpuOptions, HeadMatrix, Input as Job, Limits,
};
use crate::kernel::format::{self, ActBlock, GgmlType, Matrix};
use crate::kernel::isa::Isa;
use crate::kernel::op::matmul::{Input, Scratch, matmul};
use crate::kernel::op::quantize::Quantised;
use crate::kernel::par::Cols;
use crate::sample::Rng;

/// The formats tried: one whose codes are unpacked, and one whose codes are bytes.
const FORMATS: [GgmlType; 2] = [GgmlType::Q4_0, GgmlType::Q8_0];

/// The longest wait for one product. Nothing else waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Jobs timed, at most, and for how long.
const JOBS: usize = 100;
const TIME: Duration = Duration::from_secs(1);

/// How a device did with one format.
#[derive(Debug, Default, Serialize)]
pub struct Trial {
    pub format: String,
    /// Rows computed on the device.
    pub rows: usize,
    pub cols: usize,
    /// Whether every product has the CPU's bits, on every input.
    pub bits_equal: Option<bool>,
    /// Products that do not.
    pub wrong: usize,
    /// Weights read a second while the device computes.
    pub gbps: Option<f64>,
    /// From submission to fence on the device, the median.
    pub device_us: Option<f64>,
    /// From handing a job over to having its results, the median.
    pub job_us: Option<f64>,
    /// The same for a job without rows: median and 99th percentile.
    pub empty_us: Option<f64>,
    pub empty_us_p99: Option<f64>,
    /// What went wrong, besides wrong products.
    pub trouble: Option<String>,
}

/// Tries a device, reached by `driver`.
pub fn run(options: &GpuOptions, driver: &Driver, device: &Device) -> Vec<Trial> {
    let options = GpuOptions {
        driver: driver.clone(),
        device: Some(device.uuid_text()),
        limits: Limits { silence: PATIENCE, ..Limits::default() },
        ..options.clone()
    };
    // Enough to outgrow caches where a device is meant to be fast; little where a CPU plays one.
    let (rows, cols) = match device.kind {
        DeviceKind::Discrete => (131_072, 2048),
        DeviceKind::Cpu => (1024, 1024),
        DeviceKind::Integrated | DeviceKind::Virtual | DeviceKind::Other => (32_768, 2048),
    };
    let able = FORMATS.into_iter().filter(|ty| device.formats.contains(&ty.0));
    able.map(|ty| {
        let mut trial = Trial { format: ty.to_string(), cols, ..Trial::default() };
        if let Err(trouble) = trial.run(&options, ty, rows) {
            trial.trouble = Some(trouble);
        }
        trial
    })
    .collect()
}

impl Trial {
    fn run(&mut self, options: &GpuOptions, ty: GgmlType, rows: usize) -> Result<(), String> {
        let format = format::of(ty).ok_or_else(|| format!("there is no {ty}"))?;
        let geometry = format.geometry();
        let row_bytes = self.cols / geometry.block * geometry.bytes;
        let weights = weights(rows * row_bytes, geometry.bytes);
        let w = Matrix::new(format, &weights, rows, self.cols).map_err(|e| e.to_string())?;
        let file = temporary(&weights).map_err(|e| format!("cannot write a temporary file: {e}"))?;
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let matrix = HeadMatrix {
            file,
            offset: 0,
            rows: small(rows),
            cols: small(self.cols),
            row_bytes: small(row_bytes),
            interleaved: false,
            format: ty.0,
            activations: Activations::Q8 { block: 32 },
        };
        let mut gpu = Gpu::start(options.clone(), matrix, 1.0);
        let loaded = gpu.loaded(&options.patience)?;
        self.rows = loaded.len();
        let w = w.part(loaded.start as usize..loaded.end as usize);
        self.compare(&mut gpu, w, loaded.start)?;
        if self.bits_equal == Some(true) {
            self.time(&mut gpu, w, loaded.start)?;
        }
        Ok(())
    }

    /// Compares all products on inputs of several kinds.
    fn compare(&mut self, gpu: &mut Gpu, w: Matrix<'_>, first: u32) -> Result<(), String> {
        let mut out = vec![0.0; w.rows()];
        for vector in vectors(self.cols) {
            let x = codes(&vector);
            let want = products(w, &vector, &x);
            product(gpu, &x, first, &mut out)?;
            self.wrong += out.iter().zip(&want).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        }
        self.bits_equal = Some(self.wrong == 0);
        Ok(())
    }

    fn time(&mut self, gpu: &mut Gpu, w: Matrix<'_>, first: u32) -> Result<(), String> {
        let x = codes(&vectors(self.cols)[0]);
        let mut repeat = |out: &mut [f32]| -> Result<Vec<Done>, String> {
            let (started, mut times) = (Instant::now(), Vec::new());
            while times.len() < JOBS && started.elapsed() < TIME {
                times.push(product(gpu, &x, first, out)?);
            }
            Ok(times)
        };
        let micros = |times: &[Done], of: fn(&Done) -> Duration| -> Vec<f64> {
            times.iter().map(|done| 1e6 * of(done).as_secs_f64()).collect()
        };
        let times = repeat(&mut vec![0.0; w.rows()])?;
        let device = median(&micros(&times, |done| done.device));
        self.device_us = Some(device);
        self.job_us = Some(median(&micros(&times, |done| done.total)));
        if device > 0.0 {
            self.gbps = Some(w.bytes().len() as f64 / device / 1e3);
        }
        let empty = Quantiles::new(repeat(&mut [])?.iter().map(|done| done.total));
        self.empty_us = empty.map(|us| us.p50);
        self.empty_us_p99 = empty.map(|us| us.p99);
        Ok(())
    }
}

/// The device's products of as many rows as there is room for in `out`.
fn product(gpu: &mut Gpu, x: &Quantised, first: u32, out: &mut [f32]) -> Result<Done, String> {
    let rows = first..first + u32::try_from(out.len()).unwrap_or(u32::MAX);
    let job = Job::Q8 { codes: &x.codes, scales: &x.scales, sums: &x.sums };
    let fault = |gpu: &Gpu| gpu.status().last_fault.clone().unwrap_or_else(|| "it takes no job".to_owned());
    let Some(ticket) = gpu.submit(&job, rows) else { return Err(fault(gpu)) };
    gpu.wait(ticket, Instant::now() + PATIENCE, out).map_err(|lost| lost.to_string())
}

/// The CPU's products.
fn products(w: Matrix<'_>, vector: &[f32], x: &Quantised) -> Vec<f32> {
    let input = Input { f32: vector, n: w.cols(), b32: Some(x.q8()), b256: None };
    let mut out = vec![0.0; w.rows()];
    matmul(Isa::detect(), false, w, &input, &mut Cols::whole(&mut out, w.rows()), &mut Scratch::default());
    out
}

/// Activations in the form that the formats tried are multiplied by.
fn codes(x: &[f32]) -> Quantised {
    Quantised::new(Isa::detect(), ActBlock::B32, x.len(), x)
}

/// Random numbers, numbers that are all equal, and numbers of extreme sizes.
fn vectors(cols: usize) -> [Vec<f32>; 3] {
    let mut random = Rng::new(0);
    let mut signed = || (random.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0;
    let any = (0..cols).map(|_| signed()).collect();
    // Blocks of 32 share a scale: three kinds of them in turn.
    let extreme = (0..cols).map(|i| signed() * [1e-30, 1.0, 1e15][i / 32 % 3]).collect();
    [any, vec![0.37; cols], extreme]
}

/// Random blocks of `block` bytes with an f16 scale at the front: mostly ordinary, some zero or subnormal.
fn weights(bytes: usize, block: usize) -> Vec<u8> {
    let mut random = Rng::new(1);
    let mut out: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.bits().to_le_bytes()).collect();
    out.truncate(bytes);
    for block in out.chunks_exact_mut(block) {
        let n = random.bits();
        // Bits of an f16: a subnormal one, or one from 2^-10 to 2^-7 of either sign.
        let scale =
            if n.is_multiple_of(16) { (n >> 8) as u16 & 0x3ff } else { (n >> 8) as u16 & 0x8bff | 0x1400 };
        block[..2].copy_from_slice(&scale.to_le_bytes());
    }
    out
}

/// A file of these bytes that is gone when nobody has it open any more.
fn temporary(bytes: &[u8]) -> io::Result<File> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("twinband-vkinfo-{}-{number}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    file.write_all(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Or two wrong results could be equal.
    #[test]
    fn every_product_is_a_number_and_most_are_not_zero() {
        for ty in FORMATS {
            let format = format::of(ty).expect("a format");
            let (rows, cols) = (256, 1024);
            let bytes = rows * cols / 32 * format.geometry().bytes;
            let weights = weights(bytes, format.geometry().bytes);
            let w = Matrix::new(format, &weights, rows, cols).expect("the right size");
            for vector in vectors(cols) {
                let out = products(w, &vector, &codes(&vector));
                assert!(out.iter().all(|y| y.is_finite()), "{ty}");
                assert!(out.iter().filter(|y| **y != 0.0).count() > rows / 2, "{ty}");
            }
        }
    }
}
